"""Training function of the study ``model-parallel``: a network whose layers are wide; it runs in the ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from pytest_ddl.cluster.worker import own_rank
from pytest_ddl.training import values

RATE, MOMENTUM = 0.01, 0.9
CLASSES = 10
LAYOUTS: dict[str, tuple[str | None, ...]] = {
    # The columns of the first kernel and the rows of the second are split, so the values between both layers stay on
    # their device. Only the sum after the second layer is exchanged (Shoeybi et al. 2019, Megatron-LM).
    "first/kernel": (None, "model"),
    "first/bias": ("model",),
    "second/kernel": ("model", None),
}
"""Variable -> mesh axis of each dimension, under model parallelism; other variables have a copy on each device."""


def build(strategy: Any, width: int) -> tuple[Any, Any]:
    """Build the network and its optimizer: 64 inputs, two layers of ``width`` units, 10 classes."""
    import keras

    if hasattr(strategy, "layout_map"):
        for name, layout in LAYOUTS.items():
            strategy.layout_map[name] = layout
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(width, activation="relu", name="first"),
                keras.layers.Dense(width, activation="relu", name="second"),
                keras.layers.Dense(CLASSES, name="last"),
            ]
        )
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def train_wide(run: Any, width: int) -> None:
    """Train on scikit-learn's digits with batches of ``run.global_batch_size``."""
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits

    model, optimizer = build(run.strategy, width)
    run.watch(model=model, optimizer=optimizer)
    found = load_digits()
    images, labels = (found.data / 16).astype(np.float32), found.target.astype(np.int64)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed=run.seed)
    dataset = dataset.batch(run.global_batch_size, drop_remainder=True)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            inputs, targets = batch
            with tf.GradientTape() as tape:
                logits = model(inputs, training=True)
                losses = keras.ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
                loss = tf.reduce_sum(losses) / run.global_batch_size
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, dataset):
        pass


def bytes_on_devices(width: int) -> dict[str, int]:
    """Build network and optimizer on this rank, and return device -> bytes of their variables there."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    context = own_rank()
    model, optimizer = build(context.strategy, width)
    found: Counter[str] = Counter()
    for item in (*model.variables, *optimizer.variables):
        variable = values.backing(item)
        if values.is_sharded_by_layout(variable):
            # The parts come in the order of the mesh's devices.
            parts = [(f"device {place}", part) for place, part in enumerate(dtensor.unpack(variable.read_value()))]
        else:
            own = values.components(context.strategy, variable)
            parts = [(f"device {tf.DeviceSpec.from_string(part.device).device_index or 0}", part) for part in own]
        for device, part in parts:
            found[device] += int(part.shape.num_elements() or 0) * part.dtype.size
    return dict(found)
