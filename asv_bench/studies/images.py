"""Small image model of the medical study: a convolution and a dense layer on scikit-learn's digits of 8 x 8 pixels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from asv_bench.studies import loop
from asv_bench.studies.medical import SPLIT_SEED, TEST_SHARE

CLASSES = 10
FILTERS = 8
KERNEL = 3

Array = np.ndarray[Any, Any]


@cache
def digits() -> tuple[Array, Array, Array, Array]:
    """Return images for training with their labels, and images for testing with theirs.

    Images are float32[images, 8, 8, 1] from 0 to 1. Labels are float32[images, 10], with a 1 for the digit.
    """
    # Imported here, because the import takes a second and not every command needs it.
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images / 16).astype(np.float32)[..., None]
    labels = np.eye(CLASSES, dtype=np.float32)[found.target]
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    test, train = np.split(order, [round(TEST_SHARE * len(images))])
    return images[train], labels[train], images[test], labels[test]


def train_images(run: Any, learning_rate: float = 0.05) -> None:
    """Train a convolution of 8 filters and a dense layer: 2970 parameters."""
    import keras
    import tensorflow as tf

    inputs, labels, test_inputs, test_labels = digits()

    def losses_of(targets: Any, logits: Any) -> Any:
        return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)

    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(FILTERS, KERNEL, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(CLASSES),
    ]
    loop.train(
        run,
        layers,
        learning_rate,
        (inputs, labels),
        losses_of,
        lambda weights: scores(weights, test_inputs, test_labels),
    )


def scores(weights: list[Array], images: Array, labels: Array) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy on some images, computed with NumPy from the weights of the model.

    :param weights: kernel and bias of the convolution, then those of the dense layer.
    """
    kernel, bias, dense, offset = weights
    windows = np.lib.stride_tricks.sliding_window_view(images[..., 0].astype(np.float64), (KERNEL, KERNEL), axis=(1, 2))
    maps = np.maximum(np.einsum("nhwij,ijf->nhwf", windows, kernel[:, :, 0]) + bias, 0.0)
    logits = maps.reshape(len(images), -1) @ dense + offset
    loss = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))
    loss += logits.max(axis=1) - (labels * logits).sum(axis=1)
    return float((logits.argmax(axis=1) == labels.argmax(axis=1)).mean()), float(loss.mean())
