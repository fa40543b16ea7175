"""Program of the experiment: its images, and its training function, written as a user would write it.

The images are scikit-learn's digits in the shape of MNIST, or those of an MNIST file from the user. The training
function is a custom loop over ``run.steps``. It does not use ``fit``, in which Keras reads the loss after every batch.
On a GPU, the next batch would then not reach the device before the last one is done. This wait would be measured along
with the scaling.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.studies.loop import training_step, without_tuning

SIDE = 28
TEST_SHARE = 0.2
SPLIT_SEED = 0
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""Names of the arrays in Keras' ``mnist.npz``."""

Array = np.ndarray[Any, Any]


class ImagesError(ValueError):
    """Raised if the images cannot be used. The message names their source and says what is wrong."""


@dataclass(frozen=True)
class Images:
    """Gray images of ``SIDE`` x ``SIDE`` pixels, uint8, and their labels from 0 to 9."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    source: str
    """Origin of the images, in words."""

    def save(self, path: Path) -> None:
        np.savez(path, **{name: getattr(self, name) for name in ARRAYS})

    def trimmed(self, multiple: int) -> Images:
        """Return a copy with a multiple of ``multiple`` training images, so that every batch size uses all of them.

        :raises ImagesError: if there are fewer than ``multiple`` training images.
        """
        kept = len(self.x_train) // multiple * multiple
        if not kept:
            raise ImagesError(
                f"{self.source}: {len(self.x_train)} training images are less than one batch of {multiple}"
            )
        return Images(self.x_train[:kept], self.y_train[:kept], self.x_test, self.y_test, self.source)


def digits() -> Images:
    """Return scikit-learn's 1797 digits of 8 x 8 pixels in the size of MNIST.

    Each pixel is drawn 3 x 3, and the image gets a border of 2 pixels, as digits of MNIST have a border. A fifth of the
    images, chosen at random with a fixed seed, is kept for testing.
    """
    # Imported here, because the import takes a second and not every command needs it.
    from sklearn.datasets import load_digits

    found = load_digits()
    small = np.round(found.images * (255 / 16)).astype(np.uint8)
    large = np.pad(small.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    labels = found.target.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    test, train = np.split(order, [round(TEST_SHARE * len(labels))])
    return Images(large[train], labels[train], large[test], labels[test], "scikit-learn's digits, 8x8 drawn to 28x28")


def load(path: Path) -> Images:
    """Load the images of a file like Keras' ``mnist.npz``.

    :raises ImagesError: if the file has another format.
    """
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise ImagesError(f"{path} is a single array, not an .npz with {', '.join(ARRAYS)}")
            missing = [name for name in ARRAYS if name not in found]
            if missing:
                raise ImagesError(
                    f"{path} has no array {missing[0]}; it needs {', '.join(ARRAYS)}, as mnist.npz has them"
                )
            arrays = {name: found[name] for name in ARRAYS}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, ImagesError):
            raise
        raise ImagesError(f"{path} cannot be read as .npz: {error}") from None
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if images.ndim == 4 and images.shape[-1] == 1:
            images = arrays[f"x_{part}"] = images[..., 0]
        if images.shape[1:] != (SIDE, SIDE) or images.dtype != np.uint8:
            raise ImagesError(
                f"{path}: x_{part} is {images.dtype}{list(images.shape)}, not uint8[images, {SIDE}, {SIDE}]"
            )
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or not len(labels):
            raise ImagesError(
                f"{path}: y_{part} is {labels.dtype}{list(labels.shape)}, "
                f"not one whole number for each of {len(images)} images"
            )
        if labels.min() < 0 or labels.max() > 9:
            raise ImagesError(f"{path}: y_{part} has labels from {labels.min()} to {labels.max()}, not from 0 to 9")
        arrays[f"y_{part}"] = labels.astype(np.int64)
    return Images(**arrays, source=path.name)


def scaled(images: Array) -> Array:
    """Return the network's inputs: float32 in [0, 1], with one channel."""
    result: Array = (images[..., None] / np.float32(255)).astype(np.float32)
    return result


def build_model() -> Any:
    """Build the network of TensorFlow's guide to distributed training with Keras: 347 146 parameters."""
    import keras

    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train_mnist(run: Any, file: str, epochs: int) -> None:
    """Train on the images of an ``.npz`` file. The run gives the number of replicas and the batch size."""
    import keras
    import tensorflow as tf

    with run.strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    with np.load(file) as found:
        images, labels = scaled(found["x_train"]), found["y_train"]
    # One iterator for all epochs, because making a new pipeline for each epoch is not part of training.
    dataset = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shuffle(len(labels), seed=run.seed)
        .batch(run.global_batch_size, drop_remainder=True)
        .repeat(epochs)
        .prefetch(2)
    )

    def losses_of(labels: Any, logits: Any) -> Any:
        return keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    train_step = training_step(run, model, optimizer, losses_of)
    for _ in run.steps(train_step, without_tuning(dataset)):
        pass
