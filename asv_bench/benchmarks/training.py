"""Measurements of the comparison: a training function on one device, under a strategy, and judged."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

from pytest_ddl.comparison.comparer import Comparer
from pytest_ddl.harness import Harness
from pytest_ddl.items.selection import DdlMark

_attempts = itertools.count()


def train(run: Any, attempt: int = 0) -> None:
    """Three layers and plain SGD; ``attempt`` makes each comparison one whose reference is not known yet."""
    import keras
    import numpy as np
    import tensorflow as tf

    with run.strategy.scope():
        layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(32, activation="relu")]
        model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
    run.watch(model=model, optimizer=optimizer)
    rng = np.random.default_rng(attempt)
    x, y = rng.normal(size=(64, 16)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x) - y)[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


def equivalence_seconds(harness: Harness, variant: str) -> float:
    """Seconds for one comparison on warm clusters, the single-device reference included."""
    spec = harness.registry.parse_variant(variant)
    subject = functools.partial(train, attempt=next(_attempts))
    started = time.monotonic()
    report = Comparer(harness).compare(subject, spec, DdlMark(device="cpu"), global_batch_size=16, steps=4)
    seconds = time.monotonic() - started
    assert report.passed, str(report)
    return seconds
