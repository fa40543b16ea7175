"""Prepare a module at the moment when a program imports it for the first time.

A reused worker may have imported ``tf_keras`` for an earlier program, but a fresh worker has not. Without this
module, the same program would train in float64 on the first and in float32 on the second.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    """Finder for one module, which calls ``imported`` after the module has been executed."""

    def __init__(self, name: str, imported: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._imported = imported

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute, imported = spec.loader.exec_module, self._imported

            def executed(module: ModuleType) -> None:
                execute(module)
                imported(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


@contextmanager
def on_import(name: str, imported: Callable[[Any], None]) -> Iterator[None]:
    """Call ``imported`` with the module ``name`` if it is imported for the first time while the context is open."""
    finder = _Finder(name, imported)
    if name not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
