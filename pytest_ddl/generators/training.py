"""Generate whole training functions (model, optimizer and data), which can be printed as programs to run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import at_least
from pytest_ddl.generators.models import OPTIMIZERS, models, optimizers
from pytest_ddl.generators.shapes import BATCH_KINDS, global_batch_sizes
from pytest_ddl.generators.specs import ModelSpec, OptimizerSpec, Pasteable, import_of_keras
from pytest_ddl.training.run import Run

_PROGRAM = '''\
"""Found by a property test: {title}"""

{keras}
import numpy as np
import tensorflow as tf

import pytest_ddl


def examples():
    generator = np.random.default_rng(0)
{examples}


def train(run):
    with run.strategy.scope():
{model}
{optimizer}
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    dataset = tf.data.Dataset.from_tensor_slices(examples()).batch({batch}).repeat({steps})

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            inputs, targets = batch
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum(tf.square(model(inputs, training=True) - targets), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size={batch})
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, dataset):
        pass


if __name__ == "__main__":
    print(pytest_ddl.check_training(train, {strategy!r}, global_batch_size={batch}{arguments}))
'''


@dataclass(frozen=True, repr=False)
class TrainingSpec(Pasteable):
    """A custom training loop over one batch, which is repeated so that slots and counters matter too.

    An instance is a training function: pass it to ``ddl_equivalence`` or ``check_training`` with
    ``global_batch_size=spec.batch``.
    """

    model: ModelSpec = field(default_factory=ModelSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    batch: int = 2
    """Number of examples per step, over all replicas."""
    steps: int = 2

    def __post_init__(self) -> None:
        at_least("batch", self.batch, 1)
        at_least("steps", self.steps, 1)

    def __call__(self, run: Run) -> None:
        """Train in the same way as :meth:`program`."""
        import tensorflow as tf

        with run.strategy.scope():
            model = self.model.build()
            optimizer = self.optimizer.build()
            optimizer.build(model.trainable_variables)
        run.watch(model=model, optimizer=optimizer)
        dataset = tf.data.Dataset.from_tensor_slices(self.model.examples(self.batch)).batch(self.batch)

        @tf.function  # type: ignore[untyped-decorator]
        def train_step(iterator: Any) -> Any:
            def replica_step(batch: Any) -> Any:
                inputs, targets = batch
                with tf.GradientTape() as tape:
                    errors = tf.reduce_sum(tf.square(model(inputs, training=True) - targets), axis=-1)
                    loss = tf.nn.compute_average_loss(errors, global_batch_size=self.batch)
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
                return loss

            return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

        for _ in run.steps(train_step, dataset.repeat(self.steps)):
            pass

    def program(self, strategy: str = "mirrored", **arguments: Any) -> str:
        """Return the program as the text of a file that prints the report of :func:`pytest_ddl.check_training`.

        :param arguments: further arguments of ``check_training``.
        """
        return _PROGRAM.format(
            title=repr(self),
            keras=import_of_keras(),
            examples=_indented(self.model.examples_program(self.batch), 4),
            model=_indented(_without_import(self.model.program()), 8),
            optimizer=_indented(_without_import(self.optimizer.program()), 8),
            batch=self.batch,
            steps=self.steps,
            strategy=strategy,
            arguments="".join(f", {name}={value!r}" for name, value in arguments.items()),
        )


def trainings(
    num_replicas: int = 2,
    *,
    batches: Collection[str] = BATCH_KINDS,
    optimizer_kinds: Collection[str] = tuple(OPTIMIZERS),
    max_layers: int = 3,
    max_steps: int = 2,
) -> st.SearchStrategy[TrainingSpec]:
    """Generate a :class:`TrainingSpec`; shrink towards one step of linear regression with plain SGD.

    :param num_replicas: replicas that share a batch.
    :param batches: names from ``BATCH_KINDS`` that may be drawn.
    :param optimizer_kinds: names from ``OPTIMIZERS`` that may be drawn.
    :param max_layers: maximum number of hidden layers.
    :param max_steps: maximum number of steps.
    :raises ValueError: if an argument is not valid; the message contains its name.
    """
    return st.builds(
        TrainingSpec,
        model=models(max_layers=max_layers),
        optimizer=optimizers(optimizer_kinds),
        batch=global_batch_sizes(num_replicas, batches),
        steps=st.integers(1, at_least("max_steps", max_steps, 1)),
    )


def _without_import(program: str) -> str:
    return program.replace(f"{import_of_keras()}\n\n", "", 1)


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.rstrip("\n").splitlines())
