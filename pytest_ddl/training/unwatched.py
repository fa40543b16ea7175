"""Find variables that a program trains but does not watch, so that no check compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ddl.records import Array
from pytest_ddl.training import keras_objects, values
from pytest_ddl.training.gradient_calls import GradientSource


class Unwatched:
    """Collection of the variables of a run whose gradients were computed or applied.

    Variables without a gradient (counters, metrics, the state of a generator) are not trained. Variables that have a
    gradient but never change are not trained either.
    """

    def __init__(self, strategy: Any, is_watched: Callable[[GradientSource], bool]) -> None:
        self._strategy = strategy
        self._is_watched = is_watched
        self._sources: dict[int, GradientSource] = {}
        self._applied: set[int] = set()
        self._before: dict[int, tuple[Array, ...]] = {}
        self._moved: set[int] = set()

    def add(self, source: GradientSource, applied: bool) -> None:
        """Add a variable that has a gradient; ``applied`` is true if the gradient was passed to an optimizer."""
        self._sources.setdefault(id(source.variable), source)
        if applied:
            self._applied.add(id(source.variable))

    def look(self) -> None:
        """After a step, read the unwatched variables that have not changed so far."""
        for key, source in list(self._sources.items()):
            if key in self._moved or self._is_watched(source):
                continue
            now = self._read(source.variable)
            before = self._before.setdefault(key, now)
            if any(not np.array_equal(a, b) for a, b in zip(before, now, strict=False)):
                self._moved.add(key)

    def names(self, steps: int) -> list[str]:
        """Return the names of the unwatched variables that changed.

        Variables are first read after the first step, so that a run of one step shows no change. For such a run, return
        the names of the variables whose gradients were passed to an optimizer.
        """
        moved = self._moved if steps > 1 else self._applied
        left = [source for key, source in self._sources.items() if key in moved and not self._is_watched(source)]
        return list(dict.fromkeys(keras_objects.name_of(source.variable) for source in left))

    def _read(self, variable: Any) -> tuple[Array, ...]:
        try:
            return values.read(self._strategy, variable)
        except Exception:  # the variable's graph is gone, or its device belongs to another rank
            return ()
