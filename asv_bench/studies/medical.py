"""Medical study: classify tumors of scikit-learn's breast cancer data with a small network or a logistic model.

The data has 569 patients with 30 measurements each (Street, Wolberg and Mangasarian 1993). A fifth of the patients,
chosen at random with a fixed seed, is kept for testing. Inputs are standardized with the training patients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from asv_bench.studies import loop

TEST_SHARE = 0.2
SPLIT_SEED = 0

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Patients:
    """Measurements as float32[patients, 30], and labels as float32[patients, 1]: 1 for a benign tumor."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


@cache
def patients() -> Patients:
    """Return scikit-learn's breast cancer data, split into training and test patients."""
    # Imported here, because the import takes a second and not every command needs it.
    from sklearn.datasets import load_breast_cancer

    inputs, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    test, train = np.split(order, [round(TEST_SHARE * len(labels))])
    mean, spread = inputs[train].mean(axis=0), inputs[train].std(axis=0)
    scaled = ((inputs - mean) / spread).astype(np.float32)
    targets = labels.astype(np.float32)[:, None]
    return Patients(scaled[train], targets[train], scaled[test], targets[test])


def train_mlp(run: Any, learning_rate: float = 0.05) -> None:
    """Train a network with two hidden layers of 64 and 32 units: 4097 parameters."""
    import keras

    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(32, activation="relu")]
    _train(run, learning_rate, layers)


def train_logistic(run: Any, learning_rate: float = 0.1) -> None:
    """Train a logistic model: 31 parameters."""
    _train(run, learning_rate, [])


def _train(run: Any, learning_rate: float, hidden: list[Any]) -> None:
    import keras
    import tensorflow as tf

    data = patients()

    def losses_of(labels: Any, logits: Any) -> Any:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)[:, 0]

    layers = [keras.Input((30,)), *hidden, keras.layers.Dense(1)]
    examples = data.x_train, data.y_train
    loop.train(
        run, layers, learning_rate, examples, losses_of, lambda weights: scores(weights, data.x_test, data.y_test)
    )


def scores(weights: list[Array], inputs: Array, labels: Array) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy on some patients, computed with NumPy from the weights of a model.

    :param weights: kernels and biases in turn. Layers but the last have rectified linear units.
    """
    found = inputs.astype(np.float64)
    for place, (kernel, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        found = (np.maximum(found, 0.0) if place else found) @ kernel + bias
    loss = np.logaddexp(0.0, found) - labels * found
    return float(((found > 0) == (labels > 0.5)).mean()), float(loss.mean())
