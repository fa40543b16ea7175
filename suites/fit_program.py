"""Train with ``Model.fit``, with each feature chosen by name from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from suites.pairwise import Case

CLASSES = 3
FEATURES = 5

DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "model": ("dense", "conv", "embedding", "subclass"),
    "loss": ("sparse", "string", "sum", "function"),
    "optimizer": ("sgd", "nesterov", "adam"),
    # A generator loses a changing number of batches (generator_loses_batches), which would hide what stands beside it.
    "inputs": ("numpy", "dataset", "pydataset"),
    "weights": ("none", "sample_weight", "class_weight"),
    "execution": ("function", "eager"),
    "metrics": ("none", "compiled", "weighted"),
    "rate": ("constant", "schedule"),
    "penalty": ("none", "weights"),
    "validation": ("none", "data"),
}
"""Dimension -> its values. SGD stands beside the others, because Adam hides the scale of a gradient."""
PLAIN: Case = {name: values[0] for name, values in DIMENSIONS.items()}
"""Case to which a test adds one feature that is known to fail, and that must not hide the others."""


def is_allowed(case: Case) -> bool:
    """Return whether the values of a case, perhaps of some dimensions only, go together in Keras."""
    # Keras takes class weights for arrays and datasets only.
    return not (case.get("weights") == "class_weight" and case.get("inputs") == "pydataset")


def train(run: Any, case: Case, examples: int) -> None:
    """Train two epochs, and evaluate.

    :param case: dimension -> value. In addition to ``DIMENSIONS``, it may have ``clipping`` (an argument of the
        optimizer) and ``steps`` (for ``steps_per_execution``).
    :param examples: number of examples of an epoch.
    """
    with run.strategy.scope():
        model = _model(case["model"], case["penalty"])
        model.compile(
            _optimizer(case),
            _loss(case["loss"]),
            metrics=_metrics(case) if case["metrics"] == "compiled" else None,
            weighted_metrics=_metrics(case) if case["metrics"] == "weighted" else None,
            steps_per_execution=int(case.get("steps", 1)),
            run_eagerly=case["execution"] == "eager",
            jit_compile=False,
        )
    run.watch(model=model)
    x, y, weight = _examples(case, examples)
    weights = {"sample_weight": weight} if case["weights"] == "sample_weight" else {}
    arguments: dict[str, Any] = {"epochs": 2, "shuffle": False}
    if case["weights"] == "class_weight":
        arguments["class_weight"] = {0: 0.5, 1: 1.0, 2: 2.0}
    size = run.global_batch_size
    if case["validation"] == "data":
        arguments |= {"validation_data": (x[::-1].copy(), y[::-1].copy()), "validation_batch_size": size}
    if case["inputs"] == "numpy":
        run.fit(model, x, y=y, batch_size=size, **weights, **arguments)
    else:
        parts = (x, y, *weights.values())
        run.fit(model, _INPUTS[case["inputs"]](parts, size), **arguments)
    run.evaluate(model, x, y=y, batch_size=size)


def _metrics(case: Case) -> list[str]:
    return ["sparse_categorical_accuracy"] if case["loss"] == "sparse" else ["mae", "mse"]


def _examples(case: Case, count: int) -> tuple[Any, Any, Any]:
    """Return inputs, labels and weights that differ for each example."""
    generator = np.random.default_rng(7)
    if case["model"] == "embedding":
        x: Any = generator.integers(0, 11, size=(count, FEATURES))
    elif case["model"] == "conv":
        x = generator.normal(size=(count, 4, 4, 2)).astype("float32")
    else:
        x = generator.normal(size=(count, FEATURES)).astype("float32")
    labels = generator.integers(0, CLASSES, size=count)
    y = labels if case["loss"] == "sparse" else np.eye(CLASSES, dtype="float32")[labels]
    return x, y, generator.uniform(0.25, 2.0, size=count).astype("float32")


def _model(name: str, penalty: str) -> Any:
    from suites.subject import keras

    layers = keras.layers
    regularizer = keras.regularizers.L2(0.01) if penalty == "weights" else None
    last = layers.Dense(CLASSES, kernel_regularizer=regularizer)
    if name == "conv":
        body = [keras.Input((4, 4, 2)), layers.Conv2D(3, 2, activation="tanh"), layers.Flatten(), last]
        return keras.Sequential(body)
    if name == "embedding":
        body = [keras.Input((FEATURES,), dtype="int64"), layers.Embedding(11, 4), layers.GlobalAveragePooling1D(), last]
        return keras.Sequential(body)
    if name == "subclass":
        return _subclass()(last)
    return keras.Sequential([keras.Input((FEATURES,)), layers.Dense(6, activation="tanh"), last])


def _subclass() -> Any:
    from suites.subject import keras

    class Network(keras.Model):  # type: ignore[misc]
        def __init__(self, last: Any) -> None:
            super().__init__()
            self.first, self.last = keras.layers.Dense(6, activation="tanh"), last

        def call(self, inputs: Any) -> Any:
            return self.last(self.first(inputs))

    return Network


def _loss(name: str) -> Any:
    from suites.subject import keras, ops

    losses: Mapping[str, Callable[[], Any]] = {
        "sparse": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "string": lambda: "mse",
        "sum": lambda: keras.losses.MeanAbsoluteError(reduction="sum"),
        "function": lambda: lambda y, p: ops.sum(ops.square(y - p), axis=-1),
    }
    return losses[name]()


def _optimizer(case: Case) -> Any:
    from suites.subject import keras

    rate: Any = 0.05
    if case["rate"] == "schedule":
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=1, decay_rate=0.8)
    # Limits that the gradients of these programs exceed in most steps.
    limits = {"clipnorm": 0.1, "global_clipnorm": 0.2, "clipvalue": 0.02}
    clipping = {name: limits[name] for name in (case.get("clipping"),) if name is not None}
    makers: Mapping[str, Callable[..., Any]] = {
        "sgd": keras.optimizers.SGD,
        "nesterov": lambda *args, **given: keras.optimizers.SGD(*args, momentum=0.9, nesterov=True, **given),
        "adam": keras.optimizers.Adam,
    }
    return makers[case["optimizer"]](rate, **clipping)


def _dataset(parts: tuple[Any, ...], size: int) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(parts).batch(size)


def _pydataset(parts: tuple[Any, ...], size: int) -> Any:
    from suites.subject import keras

    class Batches(keras.utils.Sequence):  # type: ignore[misc]
        def __len__(self) -> int:
            return -(-len(parts[0]) // size)

        def __getitem__(self, index: int) -> Any:
            # TensorFlow may write into the arrays of a batch (labels_overwritten), so that they must not be views.
            return tuple(part[index * size : (index + 1) * size].copy() for part in parts)

    return Batches()


_INPUTS: Mapping[str, Callable[[tuple[Any, ...], int], Any]] = {
    "dataset": _dataset,
    "pydataset": _pydataset,
}
