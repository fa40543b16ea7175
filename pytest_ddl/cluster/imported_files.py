"""List the files of the user that a rank on another host has imported, for the comparison with the controller's.

A rank imports some modules only inside a test. The controller never does, so it cannot compare them before the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from pytest_ddl.cluster.doors import DOORS

_FOLDER = os.environ.get(DOORS)
"""Folder of the agent. It is read before a test can change the environment."""
_noted: set[str] = set()
"""Files that this process has listed."""


def note(modules: Iterable[ModuleType]) -> None:
    """Add the files of modules of the user to the list of this process. Without an agent, do nothing."""
    if _FOLDER is None:
        return
    new = {str(module.__file__) for module in modules} - _noted
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
