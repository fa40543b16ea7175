"""Measure what the guard of real jobs costs: ``python asv_bench/guard_cost.py [--device gpu] [--json FILE]``.

For each model, rounds of steps and checks take turns under ``MirroredStrategy`` with two replicas on one device, so
that a slow phase of the machine slows both. A check is timed by itself, because its share of 100 steps is smaller than
the noise of these steps. The cost is the time of a check divided by that of ``--every`` steps. The first check is
longer, because it traces its function.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROUNDS, STEPS_OF_A_ROUND = 15, 5
CLASSES = 10


def strategy_on(device: str) -> Any:
    """Return a strategy with two replicas on one device, cut in two; with ``TF_CONFIG``, that of all workers."""
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()

    kind = device.upper()
    physical = tf.config.list_physical_devices(kind)[0]
    memory = 20_000 if kind == "GPU" else None
    tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration(memory)] * 2)
    # NCCL refuses two replicas on one GPU.
    devices = [f"{kind}:0", f"{kind}:1"]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def dense(units: int, layers: int, features: int = 256) -> Callable[[], tuple[Any, tuple[int, ...]]]:
    """Return a maker of a dense network."""

    def make() -> tuple[Any, tuple[int, ...]]:
        import keras

        hidden = [keras.layers.Dense(units, activation="relu") for _ in range(layers)]
        return keras.Sequential([keras.Input((features,)), *hidden, keras.layers.Dense(CLASSES)]), (features,)

    return make


def convolution() -> tuple[Any, tuple[int, ...]]:
    """Return a small image model with batch normalization."""
    import keras

    layers: list[Any] = [keras.Input((32, 32, 3))]
    for filters in (32, 64, 128):
        layers += [keras.layers.Conv2D(filters, 3, strides=2), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(CLASSES)]), (32, 32, 3)


def residual() -> tuple[Any, tuple[int, ...]]:
    """Return ResNet50 for images of 64 by 64, with 24 million weights in 161 trainable variables."""
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=CLASSES), (64, 64, 3)


MODELS: dict[str, tuple[Callable[[], tuple[Any, tuple[int, ...]]], int]] = {
    "dense, 0.3 M weights": (dense(384, 2), 64),
    "convolution, 0.1 M weights": (convolution, 32),
    "dense, 9 M weights": (dense(2048, 3), 64),
    "ResNet50, 24 M weights": (residual, 8),
}
"""Name -> the maker of the model, and the batch of each replica."""


def measure(strategy: Any, name: str, every: int, rounds: int) -> dict[str, Any]:
    """Return the median seconds of a step and of a check, and the share of the checks."""
    import keras
    import tensorflow as tf

    import pytest_ddl

    make, batch = MODELS[name]
    with strategy.scope():
        model, shape = make()
        optimizer = keras.optimizers.Adam(1e-4)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    inputs, labels = tf.random.normal([batch, *shape]), tf.zeros([batch], tf.int64)

    @tf.function
    def step() -> Any:
        def one() -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(inputs, training=True)) / (2 * batch)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(one), axis=None)

    float(step())
    guard = pytest_ddl.guard(strategy, model, optimizer)
    begun = time.perf_counter()
    guard.check()
    first = time.perf_counter() - begun
    steps, checks = [], []
    for _round in range(rounds + 2):
        begun = time.perf_counter()
        for _step in range(STEPS_OF_A_ROUND):
            loss = step()
        float(loss)
        between = time.perf_counter()
        guard.check()
        checks.append(time.perf_counter() - between)
        steps.append((between - begun) / STEPS_OF_A_ROUND)
    step_time, check_time = statistics.median(steps[2:]), statistics.median(checks[2:])
    return {
        "model": name,
        "step_ms": 1e3 * step_time,
        "check_ms": 1e3 * check_time,
        "first_check_s": first,
        "cost_percent": 100 * check_time / (every * step_time),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--every", type=int, default=100, help="steps between two checks")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="checks of each model")
    parser.add_argument("--only", default="", help="a part of the names of models")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    strategy = strategy_on(options.device)
    rows = []
    print(f"{'model':28} {'step':>10} {'check':>10} {'first check':>12} {'cost':>8}")
    for name in MODELS:
        if options.only not in name:
            continue
        row = measure(strategy, name, options.every, options.rounds)
        rows.append(row)
        print(
            f"{name:28} {row['step_ms']:7.2f} ms {row['check_ms']:7.2f} ms {row['first_check_s']:10.2f} s "
            f"{row['cost_percent']:6.2f} %",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
