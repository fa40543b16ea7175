"""Notice whether a program draws from the generators of its process before it seeds them.

On a real cluster, nothing seeds the global generators of Python, NumPy and TensorFlow, so each worker draws other
numbers. In a comparison all ranks begin with the same state, because one device has to draw the same numbers.

Of TensorFlow, only numbers count that the program draws eagerly and outside of replica functions. Those of replicas
may differ, and so may those of a dataset, which belong to examples.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pytest_ddl.training import adapter
from pytest_ddl.training.creations import creating
from pytest_ddl.training.replacing import Replacements

_STATES: dict[str, tuple[Callable[[], Any], Any, tuple[str, ...]]] = {
    "random": (random.getstate, random, ("seed", "setstate")),
    "numpy.random": (np.random.get_state, np.random, ("seed", "set_state")),
}
"""Name of a generator -> function that returns its state, and the functions of a module that set it."""


def seed_by_rank(seed: int, rank: int) -> None:
    """Give the generators of a rank other numbers than those of the first rank, which keeps its own."""
    if rank:
        random.seed(seed + rank)
        np.random.seed((seed + rank) % 2**32)


class HostGenerators:
    """Record of the generators that a program draws from before it seeds them itself."""

    def __init__(self, apart: int = 0) -> None:
        """Prepare the record.

        :param apart: number to add to the seeds of TensorFlow's operations.
        """
        self._apart = apart
        self._last: dict[str, bytes] = {}
        """Last known state of each generator that the program has not seeded."""
        self._drawn: set[str] = set()

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Names of the generators that the program has drawn from without a seed of its own."""
        for name in tuple(self._last):
            self._look(name)
        return tuple(sorted(self._drawn))

    @contextmanager
    def watched(self, tf_seed: int) -> Iterator[None]:
        """Watch the generators while the context is open.

        :param tf_seed: global seed of TensorFlow that the run has set. The program has not seeded it while it is this.
        """
        seeds = adapter.module_of("framework.random_seed", "get_seed")
        with Replacements() as replaced:
            for name, (state, module, setters) in _STATES.items():
                self._last[name] = _digest(state())
                for setter in setters:
                    replaced.put(module, setter, self._setting(name, getattr(module, setter)))
            replaced.put(random, "randint", self._but_for_keras(random.randint))
            if seeds is not None:
                replaced.put(seeds, "get_seed", self._of_operation(seeds.get_seed, tf_seed))
            yield

    @contextmanager
    def paused(self, *names: str) -> Iterator[None]:
        """Do not count what draws from these generators, or seeds them, in this context. Without names, count none."""
        held = {name: self._last.pop(name) for name in names or _STATES if self._look(name)}
        try:
            yield
        finally:
            self._last.update({name: _digest(_STATES[name][0]()) for name in held})

    def _look(self, name: str) -> bool:
        """Note whether a generator has drawn numbers. Return True if the program has not seeded it."""
        if name not in self._last:
            return False
        now = _digest(_STATES[name][0]())
        if now != self._last[name]:
            self._drawn.add(name)
            self._last[name] = now
        return True

    def _setting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_state(*args: Any, **kwargs: Any) -> Any:
            self._look(name)
            self._last.pop(name, None)
            return original(*args, **kwargs)

        return set_state

    def _but_for_keras(self, original: Callable[[int, int], int]) -> Callable[[int, int], int]:
        """Return ``random.randint`` that does not count the default seeds of Keras (``make_default_seed``).

        They seed initializers and generators, whose variables all ranks take from the first one.
        """

        def randint(a: int, b: int) -> int:
            if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] not in ("keras", "tf_keras"):
                return original(a, b)
            with self.paused("random"):
                return original(a, b)

        return randint

    def _of_operation(self, original: Callable[[Any], Any], tf_seed: int) -> Callable[[Any], Any]:
        """Return ``get_seed``, from which each random operation gets its seeds (TF 2.0 to 2.21)."""

        def get_seed(op_seed: Any) -> Any:
            first, second = original(op_seed)
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            of_data = caller.startswith("tensorflow.python.data.")  # it has seeds of its own on each rank
            if op_seed is not None or of_data or not _is_of_host() or adapter.tf_seed() != tf_seed:
                return first, second
            self._drawn.add("tf.random")
            return first, second + self._apart

        return get_seed


def _is_of_host() -> bool:
    """Return whether the program computes eagerly, outside of replica functions and of initial values."""
    import tensorflow as tf

    in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    return tf.executing_eagerly() and not (in_replica or creating())


def _digest(state: Any) -> bytes:
    return pickle.dumps(state)
