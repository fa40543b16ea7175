"""Count alarms and misses of the guard in whole jobs: ``python asv_bench/guard_runs.py [--jobs N] [--steps N]``.

Random small jobs run under ``MirroredStrategy`` with two replicas and a guard with its default interval. Half of the
jobs are right. In the others, the copies of a variable become different at a random step, by one of the ways of
``DIVERGENCES``. The copies are also read directly before each check. A divergence of one digit may be rounded away
again before the next check, which is counted apart.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
from collections import Counter
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

DIVERGENCES = ("own-update", "own-statistics", "one-ulp", "one-replica-misses-a-step", "own-slot")
"""A replica adds a number of its own; writes statistics of its own batch; is one digit off; misses one step; has
another slot of the optimizer."""


def job(strategy: Any, chosen: random.Random, divergence: str, steps: int, every: int) -> tuple[bool, list[Any]]:
    """Train a random job, and return whether copies differed at a check, and what its guard found.

    :param divergence: one of ``DIVERGENCES``, or empty for a right job.
    """
    import keras
    import tensorflow as tf

    import pytest_ddl

    keras.utils.set_random_seed(chosen.randrange(2**31))
    features, units, batch = chosen.choice((4, 8)), chosen.choice((8, 16, 32)), chosen.choice((8, 16))
    with strategy.scope():
        layers = [keras.layers.Dense(units, activation="relu") for _ in range(chosen.randint(1, 3))]
        if chosen.random() < 0.5:
            layers.append(keras.layers.BatchNormalization(synchronized=True))
        if chosen.random() < 0.3:
            layers.append(keras.layers.Dropout(0.3))
        model = keras.Sequential([keras.Input((features,)), *layers, keras.layers.Dense(1)])
        kind = chosen.choice((keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.RMSprop))
        rate = chosen.choice((0.01, keras.optimizers.schedules.ExponentialDecay(0.01, 50, 0.9)))
        optimizer = kind(rate, momentum=0.9) if kind is keras.optimizers.SGD else kind(rate)
        optimizer.build(model.trainable_variables)
        statistics = tf.Variable(tf.zeros((features,)), trainable=False, aggregation=tf.VariableAggregation.MEAN)
    x = tf.random.normal((batch * steps, features))
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch)
    batches = iter(strategy.experimental_distribute_dataset(data))
    at = chosen.randrange(1, steps - every) if divergence else -1
    slots = [one for one in optimizer.variables if one.shape == model.trainable_variables[0].shape]

    def replica_step(batch: Any) -> None:
        x, y = batch
        with tf.GradientTape() as tape:
            errors = tf.square(model(x, training=True) - y)
            loss = tf.nn.compute_average_loss(errors[:, 0], global_batch_size=tf.shape(x)[0] * 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    train_step = tf.function(lambda batch: strategy.run(replica_step, args=(batch,)))

    guard = pytest_ddl.guard(strategy, model, optimizer, variables=[statistics], every=every, on_finding="log")
    weight, differ = model.trainable_variables[0], False
    for number in range(steps):
        before = [one.numpy() for one in copies(weight)] if number == at else []
        elements = next(batches)
        train_step(elements)
        if number == at:
            diverge(divergence, weight, before, slots, statistics)
        if (number + 1) % every == 0:
            watched = [*model.variables, *optimizer.variables, statistics]
            differ |= any((one[0].numpy() != one[1].numpy()).any() for one in map(copies, watched))
        guard.step(elements)
    return differ, list(guard.findings)


def copies(variable: Any) -> tuple[Any, ...]:
    """Return the components of a variable, one for each replica."""
    inner = variable if hasattr(variable, "values") else variable.value  # a variable of Keras holds one of TensorFlow
    return tuple(inner.values)


def diverge(how: str, weight: Any, before: list[Any], slots: list[Any], statistics: Any) -> None:
    """Make the second copy of a variable different from the first."""
    import numpy as np

    target = {"own-statistics": statistics, "own-slot": slots[0] if slots else weight}.get(how, weight)
    second = copies(target)[1]
    value = second.numpy()
    if how == "one-ulp":
        value.flat[0] = np.nextafter(value.flat[0], np.float32(np.inf))
    elif how == "one-replica-misses-a-step":
        value = before[1]
    else:
        value = value + np.float32(1e-3)
    second.assign(value)


def main() -> None:
    """Run right jobs and jobs with a divergence in turns, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, metavar="N", help="right jobs, and as many others (200)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps of each job (200)")
    parser.add_argument("--every", type=int, default=100, metavar="N", help="interval of the guard in steps (100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all choices (0)")
    options = parser.parse_args()
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    chosen = random.Random(options.seed)
    counts: Counter[str] = Counter()
    for number in range(options.jobs):
        differ, findings = job(strategy, chosen, "", options.steps, options.every)
        counts["right jobs"] += not differ
        counts["alarms"] += bool(findings)
        how = DIVERGENCES[number % len(DIVERGENCES)]
        differ, findings = job(strategy, chosen, how, options.steps, options.every)
        counts[f"{how}, {'found' if findings else 'missed' if differ else 'gone at each check'}"] += 1
        if number % 10 == 9:
            gc.collect()
            print(dict(counts), file=sys.stderr, flush=True)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
