"""Trains the cases of test_model_parallel on a mesh and on one device; run as a script, prints JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from pytest_ddl.strategies.model_parallel import ModelParallel
from pytest_ddl.strategies.spec import BuildContext, StrategySpec

layers, optimizers = keras.layers, keras.optimizers


def dense() -> Any:
    return [keras.Input((8,)), layers.Dense(8, activation="tanh"), layers.Dense(2)]


def normalized() -> Any:
    return [keras.Input((8,)), layers.Dense(8), layers.LayerNormalization(), layers.Dense(2)]


def regularised() -> Any:
    return [keras.Input((8,)), layers.Dense(8, kernel_regularizer="l2"), layers.Dense(2)]


def lazy() -> Any:
    return [layers.Dense(8, activation="tanh"), layers.Dense(2)]


def embedding() -> Any:
    return [keras.Input((8,)), layers.Embedding(16, 4), layers.Flatten(), layers.Dense(2)]


def convolution() -> Any:
    return [
        keras.Input((8,)),
        layers.Reshape((4, 2, 1)),
        layers.Conv2D(4, 2),
        layers.Flatten(),
        layers.Dense(2),
    ]


def momentum() -> Any:
    return optimizers.SGD(0.05, momentum=0.9)


CASES: dict[str, tuple[Any, Any]] = {
    "sgd": (dense, lambda: optimizers.SGD(0.05)),
    "momentum": (dense, momentum),
    "adam": (dense, lambda: optimizers.Adam(0.01)),
    "layer normalization": (normalized, momentum),
    "regularizer": (regularised, momentum),
    "lazily built": (lazy, momentum),
    "embedding": (embedding, lambda: optimizers.SGD(0.05)),
    "embedding with momentum": (embedding, momentum),
    "convolution": (convolution, momentum),
}


class OneDevice:
    """Only what the program below touches."""

    layout_map: dict[str, Any] = {}  # noqa: RUF012

    def scope(self) -> Any:
        return contextlib.nullcontext()

    def run(self, fn: Any, args: Any = ()) -> Any:
        return fn(*args)

    def reduce(self, op: str, value: Any, axis: Any = None) -> Any:
        return value

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        return dataset


def train(strategy: Any, build: Any, make_optimizer: Any, constant: Any) -> tuple[list[float], list[Any], Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model, optimizer = keras.Sequential(build()), make_optimizer()
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 16, (37, 8)) if build is embedding else rng.normal(size=(37, 8))
    dataset = tf.data.Dataset.from_tensor_slices((inputs, rng.normal(size=(37, 2)))).batch(12)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum(tf.square(model(x, training=True) - y) * constant, -1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=12)
                if model.losses:
                    loss += tf.add_n(model.losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(next(iterator),)), axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    losses = [float(train_step(iterator)) for _ in range(4)]  # the last batch has one example
    values = [np.asarray(variable.numpy()) for variable in [*model.variables, *optimizer.variables]]
    return losses, values, [*model.variables, *optimizer.variables]


def layout_of(strategy: Any, variable: Any) -> dict[str, Any]:
    """Describe the layout of a Keras variable: spec per dimension, global shape, shape of a shard and mesh axes."""
    layout = getattr(variable.value, "layout", None)
    shape = [int(size) for size in variable.shape]
    if layout is None:
        return {"spec": None, "shape": shape, "shard_shape": shape, "axes": strategy.axes}
    shard = [size // strategy.axes.get(axis, 1) for size, axis in zip(shape, layout.sharding_specs, strict=True)]
    return {"spec": list(layout.sharding_specs), "shape": shape, "shard_shape": shard, "axes": strategy.axes}


def parts_of(variable: Any) -> list[Any]:
    """Return the part of a Keras variable on each device, in the order of the mesh."""
    return [np.asarray(part) for part in dtensor.unpack(variable.value.read_value())]


def main(mesh: str, sharded: bool, names: list[str]) -> dict[str, Any]:
    keras.backend.set_floatx("float64")
    definition = ModelParallel()
    spec = StrategySpec("model_parallel", {"mesh": mesh})
    topology = definition.topology(spec)
    strategy = definition.build(BuildContext(spec, topology, topology.ranks[0], 0))
    if sharded:
        strategy.layout_map["dense/kernel"] = (None, "model")
        strategy.layout_map["embeddings"] = (None, "model")
    constant = tf.constant([1.0, 2.0], tf.float64)
    report: dict[str, Any] = {}
    for name in names or CASES:
        build, make_optimizer = CASES[name]
        losses, values, _ = train(OneDevice(), build, make_optimizer, constant)
        mesh_losses, mesh_values, variables = train(strategy, build, make_optimizer, constant)
        errors = [float(np.abs(a - b).max()) for a, b in zip(values, mesh_values, strict=True)]
        report[name] = {
            "error": max(errors + [abs(a - b) for a, b in zip(losses, mesh_losses, strict=True)]),
            "layouts": {variable.path: layout_of(strategy, variable) for variable in variables},
            "drift": max(
                float(np.abs(part - parts[0]).max())
                for variable in variables
                if set(layout_of(strategy, variable)["spec"]) <= {"unsharded"}
                for parts in [parts_of(variable)]
                for part in parts
            ),
        }
    return report


if __name__ == "__main__":
    print("REPORT", json.dumps(main(sys.argv[1], sys.argv[2] == "sharded", sys.argv[3:])))
