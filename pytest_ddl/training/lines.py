"""Collect the lines at which a program does what a finding may name: computes its loss, makes a variable, and so on."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from pytest_ddl.training import frames

LOSS, GRADIENT, APPLY, DATA, TRAIN, FIT = "loss", "gradient", "apply", "data", "train", "fit"
ALL_REDUCE, REDUCE = "all_reduce", "reduce"
"""A reduction in a replica function, and one of results outside of it."""
RESTORE, DRAW, VARIABLE, WRITE, VALUE = "restore", "draw {}", "variable {}", "write {}", "value {}"
"""Kinds of lines. ``{}`` is the position of a draw, the index of a variable, a path, or the name of a value."""
_LOOKS = 16
"""Maximum number of looks for one kind, because a program that runs eagerly passes its lines in every step."""


class Lines:
    """Lines of a program by kind, each as ``file:line``, in the order in which they ran first."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, None]] = {}
        self._looks: Counter[str] = Counter()
        self._created: dict[int, tuple[Callable[[], Any], str]] = {}
        """Id of a variable's handle -> weak reference to the variable, and the line that created it."""

    def add(self, kind: str, line: str = "") -> None:
        """Add the line of the program that this thread executes, or a line that is known already."""
        self._looks[kind] += 1
        if self._looks[kind] <= _LOOKS:
            found = line or frames.user_frames(1)
            if found:
                self._found.setdefault(kind, {}).setdefault(found)

    def add_function(self, kind: str, function: Any) -> bool:
        """Add the line at which a function is defined, and return True. A builtin or a partial function has none."""
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            self.add(kind, f"{code.co_filename}:{code.co_firstlineno}")
        return code is not None

    def create(self, variable: Any) -> None:
        """Remember that this thread creates a variable now."""
        handle = getattr(variable, "handle", None)
        line = frames.user_frames(1) if handle is not None else ""
        if line:
            self._created[id(handle)] = (weakref.ref(variable), line)

    def add_variable(self, index: int, components: tuple[Any, ...]) -> None:
        """Add the line that created a watched variable, if it was seen."""
        for part in components:
            made, line = self._created.get(id(getattr(part, "handle", None)), (None, ""))
            if made is not None and made() is not None:
                self.add(VARIABLE.format(index), line)

    def facts(self) -> dict[str, Any]:
        """Return the fact ``lines`` of the run: kind -> its lines."""
        return {"lines": {kind: tuple(found) for kind, found in self._found.items()}} if self._found else {}
