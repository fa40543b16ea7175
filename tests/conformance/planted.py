"""Objects with one defect each that only a strategy shows, except for one that is wrong in its configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pytest_ddl import current_rank

# ----- metrics -----


class AveragesReplicas(keras.metrics.Metric):
    """Adds the mean of each part, so that a replica with few examples counts as much as one with many."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.add_variable((), "zeros", name="total")
        self.parts = self.add_variable((), "zeros", name="parts")

    def update_state(self, values: Any) -> None:
        self.total.assign_add(tf.reduce_mean(values))
        self.parts.assign_add(1.0)

    def result(self) -> Any:
        return self.total / self.parts


class IgnoresWeights(keras.metrics.Mean):
    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        super().update_state(values)


class ForgetsToReset(keras.metrics.Mean):
    def reset_state(self) -> None:
        self.total.assign(0.0)


class AddsTheSumToItself(keras.metrics.Sum):
    """Sums its state over replicas in each update, and its result over replicas again."""

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        super().update_state(values, sample_weight)
        context = tf.distribute.get_replica_context()
        self.total.assign(context.all_reduce("SUM", tf.identity(self.total.value)))


# ----- losses -----


class DividesByTheLocalBatch(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        rows = tf.cast(tf.shape(y_pred)[0], y_pred.dtype)
        return tf.reduce_mean((y_true - y_pred) ** 2, axis=-1) / rows


class IsNotDivided(keras.losses.MeanSquaredError):
    """Gives the mean of the part, which is not divided by the number of replicas."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        losses = self.call(y_true, y_pred)
        return tf.reduce_mean(losses if sample_weight is None else losses * sample_weight)


class DividesByTheLocalWeights(keras.losses.MeanSquaredError):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is None:
            return super().__call__(y_true, y_pred)
        rows = tf.cast(tf.shape(y_pred)[0], y_pred.dtype)
        return super().__call__(y_true, y_pred, sample_weight * rows / tf.reduce_sum(sample_weight))


# ----- optimizers -----


def replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


class ScalesByReplicas(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars: Any) -> Any:
        pairs = [(tf.convert_to_tensor(gradient) / replicas(), variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(pairs)


class CountsReplicas(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars: Any) -> Any:
        super().apply_gradients(grads_and_vars)
        self.iterations.assign_add(replicas() - 1)


class KeepsLocalSlots(keras.optimizers.SGD):
    """Keeps the size of the replica's own gradient."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.size = self.add_variable((), name="size")

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        self.size.assign(tf.norm(tf.convert_to_tensor(pairs[0][0])))
        return super().apply_gradients(pairs)


class DropsEqualRows(keras.optimizers.SGD):
    """Keeps the last of the values that a sparse gradient has for a row."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        pairs = []
        for gradient, variable in grads_and_vars:
            dense = gradient
            if isinstance(gradient, tf.IndexedSlices):
                zeros = tf.zeros(variable.shape, gradient.dtype)
                dense = tf.tensor_scatter_nd_update(zeros, gradient.indices[:, None], gradient.values)
            pairs.append((dense, variable))
        return super().apply_gradients(pairs)


# ----- layers -----


class KeepsLocalState(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.last = self.add_weight(shape=(), initializer="zeros", trainable=False, name="last")

    def call(self, inputs: Any) -> Any:
        self.last.assign(tf.reduce_mean(inputs))
        return inputs


class CentersItsPart(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs - tf.reduce_mean(inputs, axis=0)


class CountsInPython(keras.layers.Layer):
    calls = 0

    def call(self, inputs: Any) -> Any:
        self.calls += 1
        return inputs * self.calls


class ForgetsItsFactor(keras.layers.Layer):
    def __init__(self, factor: float = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


def forgets_its_factor() -> Any:
    return ForgetsItsFactor(3.0)


class DrawsTheSame(keras.layers.Layer):
    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        return inputs + tf.random.stateless_normal(tf.shape(inputs), [1, 2], dtype=inputs.dtype)


class DrawsWithoutSeed(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.generator = tf.random.Generator.from_non_deterministic_state()

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        return inputs + self.generator.normal(tf.shape(inputs), dtype=inputs.dtype)


# ----- callbacks -----


class StopsEarly(keras.callbacks.Callback):
    """Stops a run with several replicas after the first epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = replicas()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = self.replicas > 1


class LogsItsRank(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rank = current_rank()
        logs["loss"] += 0 if rank is None else rank.rank


class ScalesTheRate(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.replicas = replicas()

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.learning_rate.assign(0.05 * self.replicas)


class WritesOnEveryWorker(keras.callbacks.Callback):
    def on_train_end(self, logs: Any = None) -> None:
        Path("result.txt").write_text(str(os.getpid()))


class WritesOnNoWorker(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.replicas = replicas()

    def on_train_end(self, logs: Any = None) -> None:
        if self.replicas == 1:
            Path("result.txt").write_text("done")
