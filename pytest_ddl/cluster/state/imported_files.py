"""Name the files of the user whose modules this process has imported, for the comparison of hosts.

A rank imports some modules only inside a test. The controller never does, so it cannot compare them before the run, and
the rank lists them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

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
    found = PathFinder.find_spec(module.__name__, getattr(package, "__path__", None))
    return found is None or found.origin != module.__file__


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
