"""Modules that are made of the text of a program."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module_of(folder: Path, name: str, text: str) -> ModuleType:
    """Write a program to a file and import it."""
    path = folder / f"program_{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
