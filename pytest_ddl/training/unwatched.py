"""Variables that a program trains and does not watch: nothing that happens to them is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ddl.records import Array
from pytest_ddl.training import optimizers, values
from pytest_ddl.training.gradient_calls import Source


class Unwatched:
    """The variables of a run whose gradients were taken or applied; says which of them move and are not watched.

    A variable without a gradient is no part of what is trained: a counter, a metric, the state of a generator. One
    that has a gradient and never moves is not trained either.
    """

    def __init__(self, strategy: Any, is_watched: Callable[[Source], bool]) -> None:
        self._strategy = strategy
        self._is_watched = is_watched
        self._sources: dict[int, Source] = {}
        self._applied: set[int] = set()
        self._before: dict[int, tuple[Array, ...]] = {}
        self._moved: set[int] = set()

    def add(self, source: Source, applied: bool) -> None:
        """Note a variable that has a gradient; ``applied`` if the gradient was handed to an optimizer."""
        self._sources.setdefault(id(source.variable), source)
        if applied:
            self._applied.add(id(source.variable))

    def look(self) -> None:
        """Read, after a step, what is not watched and has not moved up to now."""
        for key, source in list(self._sources.items()):
            if key in self._moved or self._is_watched(source):
                continue
            now = self._read(source.variable)
            before = self._before.setdefault(key, now)
            if any(not np.array_equal(a, b) for a, b in zip(before, now, strict=False)):
                self._moved.add(key)

    def names(self, steps: int) -> list[str]:
        """Return the names of the variables that moved. After a single step, of those that an optimizer was given."""
        moved = self._moved if steps > 1 else self._applied
        left = [source for key, source in self._sources.items() if key in moved and not self._is_watched(source)]
        return list(dict.fromkeys(optimizers.name_of(source.variable) for source in left))

    def _read(self, variable: Any) -> tuple[Array, ...]:
        try:
            return values.read(self._strategy, variable)
        except Exception:  # a variable of a graph that is gone, or of a device that is not this rank's
            return ()
