"""Parts that the programs share: what an entry is, and a small training with a counter of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

STEPS = 6
BATCH = 12
EPOCH = 3
"""Steps of an epoch, for programs with two epochs."""
KNOWN = {"expect": {"random-stream-repeated-across-replicas": "keras-seed-generator"}}
"""Argument for programs with dropout: Keras 3 draws the same masks on all replicas."""
WORKERS = "multi_worker_mirrored"


@dataclass(frozen=True)
class Recovery:
    """A program that is interrupted, and what must be said about it."""

    program: Callable[[Any], None]
    fault: str
    """Fault, or several separated by ``; ``, or ``every point``."""
    verdicts: tuple[str, ...] = ("exact",)
    """Verdicts that are right. ``comparison`` means that the comparison without faults fails already."""
    causes: tuple[str, ...] = ()
    """Cause ids that are right; empty if the verdict says it all."""
    strategy: str = "mirrored"
    given: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the check."""
    missed: str = ""
    """Text in place of the right verdict, for a bug that is caught and not yet named."""
    broken: str = ""
    """Part of the reason, if the program recovers and breaks a limit that was asked for."""

    @property
    def name(self) -> str:
        return f"{self.program.__name__}-{self.strategy}-{self.fault.replace(' ', '_')}"


class Training:
    """Model, optimizer, a counter of steps, and a step function that counts."""

    def __init__(self, run: Any, make: Any = None, layers: Any = None, units: int = 3) -> None:
        self.run = run
        with run.strategy.scope():
            middle = layers() if layers else [keras.layers.Dense(units, activation="tanh")]
            self.model = keras.Sequential([keras.Input((4,)), *middle, keras.layers.Dense(1)])
            self.optimizer = make() if make else keras.optimizers.SGD(0.1, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)
        self.done = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.step = step_function(run, self.model, self.optimizer)
        self.step_of_batch = step_function(run, self.model, self.optimizer, of_batch=True)
        run.watch(model=self.model, optimizer=self.optimizer)

    @property
    def count(self) -> int:
        return int(self.done.numpy())

    def checkpoint(self, *without: str, **more: Any) -> tf.train.Checkpoint:
        """Return a checkpoint of model, optimizer and counter, without the parts that are named."""
        parts = {"model": self.model, "optimizer": self.optimizer, "done": self.done, **more}
        return tf.train.Checkpoint(**{name: part for name, part in parts.items() if name not in without})

    def steps(self, dataset: Any, steps: int | None = None):
        """Train, and yield the number of steps that are done."""
        for _loss in self.run.steps(self.step, dataset, steps=steps):
            self.done.assign_add(1)
            yield self.count


def step_function(run, model, optimizer, of_batch=False):
    """Return a step that takes an iterator, or a batch."""

    @tf.function
    def train_step(given):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                error = tf.square(model(x, training=True) - tf.cast(y, model.compute_dtype))[:, 0]
                loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
                scaled = optimizer.scale_loss(loss) if hasattr(optimizer, "inner_optimizer") else loss
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce(
            "SUM", run.strategy.run(replica_step, args=(given if of_batch else next(given),)), axis=None
        )

    return train_step


def scaled():
    """Return an optimizer that scales the loss."""
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0, dynamic_growth_steps=2)


def arrays(rows=STEPS * BATCH):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4))
    return x, x[:, :1] * 2 + 1


def examples(rows=STEPS * BATCH):
    return tf.data.Dataset.from_tensor_slices(arrays(rows))


def batches(run, rows=STEPS * BATCH):
    return examples(rows).batch(run.global_batch_size)


def manager_of(run, checkpoint, name="saved"):
    """Return a manager, and the newest checkpoint of the chief, which all ranks restore."""
    saved = run.tmp_path / name
    folder = saved if run.rank == 0 else run.rank_path / "temporary"
    return tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2), tf.train.latest_checkpoint(str(saved))


def write_arrays(path, variables, **more):
    """Write variables to a new file that then replaces the old one."""
    new = path.with_name("new.npz")
    np.savez(new, **more, **{f"v{at:03}": np.asarray(value) for at, value in enumerate(variables)})
    new.replace(path)


def read_arrays(path, variables):
    """Assign the values of a file to variables, and return the others by name."""
    with np.load(path) as found:
        names = sorted(name for name in found.files if name[0] == "v" and name[1:].isdigit())
        for variable, name in zip(variables, names, strict=False):
            variable.assign(found[name])
        return {name: found[name] for name in found.files if name not in names}
