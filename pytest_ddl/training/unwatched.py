"""Find variables that a program trains but does not watch, so that no check compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ddl.records import Array
from pytest_ddl.training import keras_objects, values
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.gradient_calls import GradientSource


class Unwatched:
    """Collection of the variables of a run that derivatives were computed for.

    Variables without a derivative (counters, metrics, the state of a generator) are not trained. Variables that have
    one and never change are not trained either.
    """

    def __init__(self, strategy: Any, is_watched: Callable[[GradientSource], bool]) -> None:
        self._strategy = strategy
        self._is_watched = is_watched
        self._sources: dict[int, GradientSource] = {}
        self._applied: set[int] = set()
        self._before: dict[int, tuple[Array, ...]] = {}
        self._moved: set[int] = set()
        self._looks: Counter[int] = Counter()
        """How often a variable was read before its first update, or after a step."""

    def add(self, source: GradientSource, applied: bool) -> None:
        """Add a variable that has a derivative; ``applied`` is true if a gradient was passed to an optimizer."""
        import tensorflow as tf

        key = id(source.variable)
        if key not in self._sources and not self._is_watched(source) and not uses_coordinator(self._strategy):
            with tf.init_scope():  # while a step is traced, no update of it has run
                if self._remember(key, source.variable):
                    self._looks[key] += 2
        self._sources.setdefault(key, source)
        if applied:
            self._applied.add(key)

    def look(self, after_step: bool) -> None:
        """After a step, and when the program has ended, read the unwatched variables that have not changed so far."""
        for key, source in list(self._sources.items()):
            if key in self._moved or self._is_watched(source):
                continue
            now = self._remember(key, source.variable)
            self._looks[key] += after_step
            if any(not np.array_equal(a, b) for a, b in zip(self._before.get(key, ()), now, strict=False)):
                self._moved.add(key)

    def names(self) -> list[str]:
        """Return the names of the unwatched variables that changed.

        A variable that could only be read after the first step that trained it shows no change if no step followed.
        Then it counts if a gradient of it was passed to an optimizer.
        """
        return self._names_of(self._moved | {key for key in self._applied if self._looks[key] < 2})

    def names_of_moved(self) -> list[str]:
        """Return the names of the unwatched variables that were seen to change."""
        return self._names_of(self._moved)

    def _names_of(self, moved: set[int]) -> list[str]:
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
