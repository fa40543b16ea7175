"""Apply given gradients on the replicas of a strategy, and compare what changes with a model of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from pytest_ddl.conformance.comparing import compare
from pytest_ddl.conformance.kinds import package_of
from pytest_ddl.conformance.running import components, each, is_coordinator, replicas_of

Array = np.ndarray[Any, Any]
NAMES = ("kernel", "bias")
WEIGHTS = (np.linspace(-1, 2, 6).reshape(3, 2), np.array([0.5, -0.25]))
"""First values of the variables."""
STEPS = 3


def gradient(step: int, replica: int) -> tuple[Array, ...]:
    """Return gradients that differ by step, replica, variable and position."""
    draw = np.random.default_rng([step, replica])
    return tuple((1 + replica) * draw.normal(size=weight.shape) for weight in WEIGHTS)


class ConformanceSteps:
    """A layer with an optimizer under a strategy.

    :param keras: package of Keras; by default Keras 3.
    """

    def __init__(
        self, strategy: Any, make: Callable[[], Any], how: str, *, build: bool = True, keras: Any = None
    ) -> None:
        package = package_of("keras") if keras is None else keras
        self.strategy = strategy
        with strategy.scope():
            self.layer = package.layers.Dense(2, name="dense")
            self.layer.build((None, 3))
            self.layer.set_weights(WEIGHTS)
            self.variables = self.layer.trainable_variables
            self.optimizer = make()
            if build and hasattr(self.optimizer, "build"):
                self.optimizer.build(self.variables)
        self._apply = each(strategy, self._apply_gradients, how)

    def _apply_gradients(self, *gradients: Any) -> None:
        import tensorflow as tf

        pairs = zip(gradients, self.variables, strict=True)
        self.optimizer.apply_gradients([(tf.cast(one, variable.dtype), variable) for one, variable in pairs])

    def gradients(self, step: int) -> list[tuple[Array, ...]]:
        """Return the gradients of all replicas."""
        return [gradient(step, replica) for replica in range(replicas_of(self.strategy))]

    def updates(self, step: int) -> list[tuple[Array, ...]]:
        """Return the gradients of each update: workers of a coordinator update one after the other."""
        gradients = self.gradients(step)
        return gradients if is_coordinator(self.strategy) else [total(gradients)]

    def apply(self, gradients: Sequence[Sequence[Array]]) -> None:
        """Give each replica its gradients, and update."""
        self._apply(gradients)

    def check(self, variable: Any, expected: Any, rtol: float = 1e-12) -> None:
        """Compare every component of a variable.

        :raises AssertionError: if one differs.
        """
        for replica, part in enumerate(components(self.strategy, variable)):
            what = f"{variable.name} of local replica {replica}"
            compare(what, part, expected, rtol, where="with the sum of the gradients")

    def check_weights(self, expected: Sequence[Any], rtol: float = 1e-12) -> None:
        """Compare every component of all weights.

        :raises AssertionError: if one differs.
        """
        for variable, values in zip(self.variables, expected, strict=True):
            self.check(variable, values, rtol)


class Model(Protocol):
    """Model of the update that an optimizer should make with gradients."""

    def update(self, gradients: Sequence[Array]) -> None:
        """Make one update."""

    def expected(self, steps: ConformanceSteps) -> Iterator[tuple[Any, Any]]:
        """Yield variables with the values that they should have after the updates so far."""


def follow(steps: ConformanceSteps, model: Model, rtol: float) -> None:
    """Make steps with gradients that differ by replica, and compare with the model after each.

    The model gets their sum; under a coordinator it gets them one after the other.

    :raises AssertionError: if a variable differs.
    """
    for step in range(STEPS):
        steps.apply(steps.gradients(step))
        for update in steps.updates(step):
            model.update(update)
        for variable, expected in model.expected(steps):
            steps.check(variable, expected, rtol)


def total(gradients: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
    """Return the sums over replicas."""
    return tuple(np.sum(column, axis=0) for column in zip(*gradients, strict=True))
