"""Distinguish the user's files from those of Python and packages, and list those that this process has imported.

A rank imports some modules only inside a test. The controller never does, so it cannot compare the hosts' files before
the run, and the rank lists them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest_ddl

_PACKAGES = ("/site-packages/", "/dist-packages/")
_PRELOADED = ("tensorflow", "keras", "tf_keras")
"""Packages that a rank imports before each test."""
_TESTS = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")


@functools.cache
def is_user_file(file: str | None) -> bool:
    """Return whether a file belongs neither to Python nor to an installed package, including this one.

    TensorFlow and Keras are packages wherever they are, because the ranks have imported them before each test. They may
    come from a checkout, whose tests are the user's.
    """
    if not file or str(file).startswith(_installed()) or any(folder in str(file) for folder in _PACKAGES):
        return False
    for folder in {entry.rstrip(os.sep) for entry in sys.path if entry}:
        if str(file).startswith(folder + os.sep):
            top = str(file)[len(folder) + 1 :].partition(os.sep)[0]
            if top in _packages_in(folder):
                return False
    is_test = _TESTS.fullmatch(os.path.basename(file)) is not None
    return is_test or not str(file).startswith(tuple(map(_folder_of, _PRELOADED)))


def _folder_of(package: str) -> str:
    """Return the folder of a package that is imported or can be, with a separator, or else a name of no file."""
    loaded = sys.modules.get(package)
    # The finders of this process would ask for this file again.
    file = vars(loaded).get("__file__") if loaded else getattr(PathFinder.find_spec(package), "origin", None)
    return os.path.join(os.path.dirname(file), "") if file else "<"


@functools.cache
def _packages_in(folder: str) -> frozenset[str]:
    """Return the names of what was installed into a folder of the search path, as ``pip install --target`` does it.

    The user's own files may be in the same folder. So only what the records of the packages list is installed.
    """
    packages: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        try:
            packages.update(line.split(",")[0].partition("/")[0] for line in record.read_text("utf-8").splitlines())
        except OSError:
            continue
    return frozenset(packages)


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    own = os.path.join(os.path.dirname(pytest_ddl.__file__), "")
    return (*{paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}, own, "<")


DOORS = "_PYTEST_DDL_DOORS"
"""Environment variable with the folder of the agent's sockets."""
_FOLDER = os.environ.get(DOORS)
"""Folder of the agent. It is read before a test can change the environment."""
_noted: set[str] = set()
"""Files that this process has listed."""


def files(modules: Iterable[ModuleType]) -> set[str]:
    """Return the files of modules, without those that a library has generated.

    TensorFlow's AutoGraph writes a module for each function that it converts, under a random name. Each process makes
    its own, so other hosts have none of them.
    """
    return {str(module.__file__) for module in modules if not _is_generated(module)}


def _is_generated(module: ModuleType) -> bool:
    """Return whether a module was loaded by its path from the folder of temporary files, and not by its name."""
    in_temporary_folder = str(module.__file__).startswith(tempfile.gettempdir() + os.sep)
    # Pytest loads test modules with a loader of its own, and several may have one name.
    if not in_temporary_folder or type(module.__loader__) is not SourceFileLoader:
        return False
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    spec = PathFinder.find_spec(module.__name__, getattr(package, "__path__", None))
    return spec is None or spec.origin != module.__file__


def on_host_of_agent() -> bool:
    """Return whether an agent has started this process, possibly on another host than the pytest process."""
    return _FOLDER is not None


def note(modules: Iterable[ModuleType]) -> None:
    """Add the files of modules of the user to the list of this process. Without an agent, do nothing."""
    if _FOLDER is None:
        return
    new = files(modules) - _noted
    if new:
        with open(_list(Path(_FOLDER), os.getpid()), "a", encoding="utf-8") as file:
            file.writelines(json.dumps(path) + "\n" for path in sorted(new))
        _noted.update(new)


def take(folder: Path, pid: int) -> list[str]:
    """Return the files that a process has added since the last call."""
    try:
        lines = _list(folder, pid).read_text(encoding="utf-8").splitlines()
        _list(folder, pid).unlink()
    except OSError:
        return []
    return [json.loads(line) for line in lines]


def _list(folder: Path, pid: int) -> Path:
    return folder / f"imported-{pid}"
