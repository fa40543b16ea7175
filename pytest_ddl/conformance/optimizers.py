"""Check that an optimizer that gets other gradients on each replica does what one device does with their sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pytest_ddl.conformance.comparing import SINGLE, compare
from pytest_ddl.conformance.kinds import package_of
from pytest_ddl.conformance.registry import Subject, register
from pytest_ddl.conformance.running import components, each, is_coordinator, replicas_of
from pytest_ddl.conformance.steps import Array, ConformanceSteps, follow

_ROWS = 6
_WIDTH = 3


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer, which legacy optimizers of tf_keras have as a method."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class OptimizerOnOneDevice:
    """The same optimizer out of the strategy, which gets the sum of the gradients.

    :param what: ``"weights"``, ``"slots"`` or ``"iterations"``: the variables to compare.
    """

    def __init__(self, subject: Subject, what: str) -> None:
        import tensorflow as tf

        self._what = what
        self._steps = ConformanceSteps(
            tf.distribute.get_strategy(), subject.make, "eager", keras=package_of(subject.flavor)
        )

    def update(self, gradients: Sequence[Array]) -> None:
        """Make one update."""
        self._steps.apply([gradients])

    def expected(self, steps: ConformanceSteps) -> Iterator[tuple[Any, Any]]:
        """Yield variables of the optimizer under a strategy, with the values of the one on one device."""
        for variable, own in zip(self._of(steps), self._of(self._steps), strict=True):
            yield variable, np.asarray(own)

    def _of(self, steps: ConformanceSteps) -> list[Any]:
        if self._what == "weights":
            return list(steps.variables)
        if self._what == "iterations":
            return [steps.optimizer.iterations]
        apart = {id(steps.optimizer.iterations)}
        return [variable for variable in variables_of(steps.optimizer) if id(variable) not in apart]


def _follow(strategy: Any, subject: Subject, what: str, how: str = "function") -> None:
    steps = ConformanceSteps(strategy, subject.make, how, keras=package_of(subject.flavor))
    follow(steps, OptimizerOnOneDevice(subject, what), SINGLE)


@register(
    "optimizer",
    "Weights change as on one device with the sum of the replicas' gradients, on every replica.",
    advice="Let apply_gradients() sum the gradients over replicas once, before anything that is not linear, and divide "
    "by no number of replicas: the loss is divided already.",
    coordinator=True,
)
def optimizer_applies_the_summed_gradient(strategy: Any, subject: Subject) -> None:
    for how in ("function", "eager"):
        _follow(strategy, subject, "weights", how)


@register(
    "optimizer",
    "Slots and other state are those of one device, on every replica.",
    advice="Compute slots from the summed gradient, and make them with add_variable_from_reference().",
    needs=("state",),
    coordinator=True,
)
def optimizer_keeps_the_slots_of_one_device(strategy: Any, subject: Subject) -> None:
    _follow(strategy, subject, "slots")


@register(
    "optimizer",
    "The counter of steps grows by one in each step, and not by the number of replicas.",
    advice="Change self.iterations once per step: the optimizer's base class does it.",
    coordinator=True,
)
def optimizer_counts_each_step_once(strategy: Any, subject: Subject) -> None:
    _follow(strategy, subject, "iterations")


def _rows(step: int, replica: int) -> tuple[Array, Array]:
    """Return values and indices of a sparse gradient. All replicas have row 1, and each has a row twice."""
    draw = np.random.default_rng([9, step, replica])
    return (1 + replica) * draw.normal(size=(4, _WIDTH)), np.array([1, 2 + replica % 4, 2 + replica % 4, 0], "int32")


class _Table:
    """A table of rows with an optimizer, and its steps with sparse gradients."""

    def __init__(self, strategy: Any, subject: Subject, how: str) -> None:
        keras = package_of(subject.flavor)
        with strategy.scope():
            self.layer = keras.layers.Embedding(_ROWS, _WIDTH)
            self.layer.build((None,))
            self.layer.set_weights([np.linspace(-1, 2, _ROWS * _WIDTH).reshape(_ROWS, _WIDTH)])
            (self.variable,) = self.layer.trainable_variables
            self.optimizer = subject.make()
            if hasattr(self.optimizer, "build"):
                self.optimizer.build([self.variable])
        self._precision = subject.precision
        self.apply = each(strategy, self._apply, how)

    def _apply(self, values: Any, indices: Any) -> None:
        import tensorflow as tf

        values = tf.cast(values, self._precision)
        slices = tf.IndexedSlices(values, indices, tf.constant([_ROWS, _WIDTH]))
        self.optimizer.apply_gradients([(slices, self.variable)])


@register(
    "optimizer",
    "Sparse gradients with rows that several replicas have, or one has twice, are summed.",
    advice="Sum tf.IndexedSlices over replicas, and add up rows that occur more than once, before a slot is computed.",
    needs=("sparse_gradients",),
    coordinator=True,
)
def optimizer_sums_sparse_gradients(strategy: Any, subject: Subject) -> None:
    import tensorflow as tf

    table, alone = _Table(strategy, subject, "function"), _Table(tf.distribute.get_strategy(), subject, "eager")
    for step in range(3):
        parts = [_rows(step, replica) for replica in range(replicas_of(strategy))]
        table.apply(parts)
        # One device gets the rows of all replicas in one gradient; workers of a coordinator update one by one.
        together = [tuple(np.concatenate(column) for column in zip(*parts, strict=True))]
        for update in parts if is_coordinator(strategy) else together:
            alone.apply([update])
        for replica, part in enumerate(components(strategy, table.variable)):
            what = f"the table of local replica {replica} after step {step + 1}"
            compare(what, part, np.asarray(alone.variable), SINGLE, where="with the rows of all replicas")
