"""Random models, optimizers and batch sizes train alike on one device and under every strategy."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import given

from pytest_ddl import generators
from pytest_ddl.generators import ModelSpec, OptimizerSpec


def train(run: Any, model: ModelSpec, optimizer: OptimizerSpec, examples: int) -> None:
    """Two passes over a data set that is one batch, so that slots and counters matter too."""
    import tensorflow as tf

    with run.strategy.scope():
        built = model.build()
        updater = optimizer.build()
        updater.build(built.trainable_variables)
    run.watch(model=built, optimizer=updater)
    dataset = tf.data.Dataset.from_tensor_slices(model.examples(examples)).batch(examples).repeat(2)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            inputs, targets = batch
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum(tf.square(built(inputs, training=True) - targets), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=examples)
            variables = built.trainable_variables
            updater.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, dataset):
        pass


@given(
    model=generators.models(),
    optimizer=generators.optimizers(),
    examples=generators.global_batch_sizes(num_replicas=2),
)
def test_any_model_trains_alike(model, optimizer, examples, ddl_equivalence):
    job = partial(train, model=model, optimizer=optimizer, examples=examples)
    ddl_equivalence(job, global_batch_size=examples)
