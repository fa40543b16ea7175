"""Train a workload in two ways: with a custom loop and with ``Model.fit``."""

from __future__ import annotations

from typing import Any

from suites.data import Examples
from suites.workloads.workload import Workload


def train_in_a_loop(run: Any, workload: Workload, examples: Examples, built: bool = True) -> None:
    """Train as TensorFlow's guide to distributed training with custom loops recommends, under every strategy.

    :param built: build the optimizer before the first step. With ``False`` it makes its variables in the first step,
        as in the guide's own examples.
    """
    import tensorflow as tf

    from suites.subject import ops

    with run.strategy.scope():
        model = workload.build_model()
        optimizer = workload.build_optimizer()
        if built:
            # In the first step, this would fail with several replicas: keras-team/keras#23085.
            optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    dataset = tf.data.Dataset.from_tensor_slices(tuple(examples)).batch(run.global_batch_size)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            inputs, labels = batch
            with tf.GradientTape() as tape:
                logits = model(inputs, training=True)
                losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, dataset):
        pass


def train_with_fit(run: Any, workload: Workload, examples: Examples) -> None:
    """Train and evaluate with ``Model.fit`` and ``Model.evaluate``."""
    import tensorflow as tf

    from suites.subject import keras

    with run.strategy.scope():
        model = workload.build_model()
        optimizer = workload.build_optimizer()
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    run.watch(model=model, optimizer=optimizer)
    dataset = tf.data.Dataset.from_tensor_slices(tuple(examples)).batch(run.global_batch_size)
    run.fit(model, dataset, shuffle=False)
    run.evaluate(model, dataset)
