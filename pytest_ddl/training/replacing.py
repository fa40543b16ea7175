"""Replacing methods and functions for a while, and putting back exactly what was there."""

from __future__ import annotations

from types import TracebackType
from typing import Any

_ABSENT = object()


class Replacements:
    """What was replaced while the context is open; its end restores all, the last first."""

    def __init__(self) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Any]] = {}

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class, a module or an object; what was there at first is what comes back."""
        # From its own namespace: what it merely inherits must not become an attribute of its own.
        self._originals.setdefault((id(owner), name), (owner, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def holds(self, owner: Any, name: str) -> bool:
        """Whether an attribute is replaced."""
        return (id(owner), name) in self._originals

    def __enter__(self) -> Replacements:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._originals:
            (_owner, name), (owner, original) = self._originals.popitem()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
