"""Tell the user's files from those of Python and of installed packages."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path

import pytest_ddl

_PACKAGES = ("/site-packages/", "/dist-packages/")


@functools.cache
def is_user_file(file: str | None) -> bool:
    """Return whether a file belongs neither to Python nor to an installed package, including this one."""
    if not file or str(file).startswith(_installed()) or any(folder in str(file) for folder in _PACKAGES):
        return False
    for folder in {entry.rstrip(os.sep) for entry in sys.path if entry}:
        if str(file).startswith(folder + os.sep):
            top = str(file)[len(folder) + 1 :].partition(os.sep)[0]
            if top in _packages_in(folder):
                return False
    return True


@functools.cache
def _packages_in(folder: str) -> frozenset[str]:
    """Return the names of what was installed into a folder of the search path, as ``pip install --target`` does it.

    The user's own files may be in the same folder. So only what the records of the packages list is installed.
    """
    found: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        try:
            found.update(line.split(",")[0].partition("/")[0] for line in record.read_text("utf-8").splitlines())
        except OSError:
            continue
    return frozenset(found)


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    own = os.path.join(os.path.dirname(pytest_ddl.__file__), "")
    return (*{paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}, own, "<")
