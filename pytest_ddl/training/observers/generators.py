"""Record the state of each ``tf.random.Generator`` after each step, because an interruption may lose it."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import values
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements, named_like


class Generators(Observer):
    """Observer that fills the fact ``generators``: step -> digest of the state of each generator, by its creation.

    What a program draws within replica functions is recorded as draws. It may also draw outside of them.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._made: list[weakref.ref[Any]] = []
        self._states: dict[int, tuple[str, ...]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        original = tf.random.Generator.__init__

        def made(generator: Any, *args: Any, **kwargs: Any) -> None:
            original(generator, *args, **kwargs)
            self._made.append(weakref.ref(generator))

        with Replacements().put(tf.random.Generator, "__init__", named_like(original, made)):
            yield

    def end_step(self) -> Mapping[str, Any]:
        if self._made and not uses_coordinator(self.context.strategy):
            self._states[self.recorder.completed + 1] = tuple(map(self._digest, self._made))
        return {}

    def discard(self) -> None:
        """Keep the states: they belong to the steps that have ended."""

    def end_run(self) -> Mapping[str, Any]:
        return {"facts": RunFacts(generators=self._states)} if self._states else {}

    def _digest(self, reference: weakref.ref[Any]) -> str:
        generator = reference()
        if generator is None:
            return ""
        try:
            parts = values.read(self.context.strategy, generator.state)
        except Exception:  # the program deleted the variable, or its graph is gone
            return ""
        return hashlib.sha256(b"|".join(part.tobytes() for part in parts)).hexdigest()
