"""Replace methods and functions for a while, and restore exactly the originals."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

_ABSENT = object()


def named_like(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Give a replacement the names and the signature of the original, and return it.

    AutoGraph does not convert functions of modules such as ``tensorflow`` and ``keras``, and calls them without
    switching itself off. So a replacement with the module of such an original costs no conversion, and the functions
    of the user that it calls are still converted.
    """
    # Not functools.wraps: AutoGraph would convert the source of the function in ``__wrapped__``.
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(replacement, attribute, getattr(original, attribute))
    replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return replacement


class Replacements:
    """Set of replaced attributes. The end of the context restores them in reverse order."""

    def __init__(self) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Any]] = {}

    def put(self, owner: Any, name: str, value: Any) -> Replacements:
        """Set an attribute of a class, module or object, and remember its first original value. Return this object."""
        # Look only in the owner's own namespace: an inherited attribute must not become its own when restored.
        self._originals.setdefault((id(owner), name), (owner, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)
        return self

    def holds(self, owner: Any, name: str) -> bool:
        """Return True if an attribute is replaced."""
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
