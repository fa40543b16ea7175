"""Find variables that a program trains but does not watch, so that no check compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ddl.records import Array
from pytest_ddl.training import keras_objects, values
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.gradient_calls import GradientSource


class Unwatched:
    """Collection of the variables of a run that derivatives were computed for.

    Variables without a derivative (counters, metrics, the state of a generator) are not trained. Nor are variables
    that have one and never change.
    """

    def __init__(self, strategy: Any, is_watched: Callable[[GradientSource], bool]) -> None:
        self._strategy = strategy
        self._is_watched = is_watched
        self._sources: dict[int, GradientSource] = {}
        self._applied: set[int] = set()
        self._before: dict[int, tuple[Array, ...]] = {}
        self._moved: set[int] = set()
        self._early: set[int] = set()
        """Variables that were read before their first update."""

    def add(self, source: GradientSource, applied: bool) -> None:
        """Add a variable that has a derivative; ``applied`` is true if a gradient was passed to an optimizer."""
        import tensorflow as tf

        key = id(source.variable)
        if key not in self._sources and not self._is_watched(source) and not uses_coordinator(self._strategy):
            with tf.init_scope():  # while a step is traced, no update of it has run
                if self._remember(key, source.variable):
                    self._early.add(key)
        self._sources.setdefault(key, source)
        if applied:
            self._applied.add(key)

    def look(self) -> None:
        """After a step, read the unwatched variables that have not changed so far."""
        for key, source in list(self._sources.items()):
            if key in self._moved or self._is_watched(source):
                continue
            now = self._remember(key, source.variable)
            if any(not np.array_equal(a, b) for a, b in zip(self._before.get(key, ()), now, strict=False)):
                self._moved.add(key)

    def names(self, steps: int) -> list[str]:
        """Return the names of the unwatched variables that changed.

        A variable that could only be read after the first step shows no change in a run of one step. Then return the
        names of the variables whose gradients were passed to an optimizer, too.
        """
        moved = self._moved if steps > 1 else self._moved | (self._applied - self._early)
        left = [source for key, source in self._sources.items() if key in moved and not self._is_watched(source)]
        return list(dict.fromkeys(keras_objects.name_of(source.variable) for source in left))

    def _remember(self, key: int, variable: Any) -> tuple[Array, ...]:
        """Read a variable, and keep the first value that could be read."""
        try:
            now = values.read(self._strategy, variable)
        except Exception:  # the variable's graph is gone, or its device belongs to another rank
            return ()
        if now:
            self._before.setdefault(key, now)
        return now
