"""Training functions for the work around a training step: the input pipeline, saving and restoring."""

from __future__ import annotations

from typing import Any


def images(run: Any) -> None:
    """Shuffle, decode, augment and distribute images of 32 by 32 pixels; a step does nothing but take its batch."""
    import numpy as np
    import tensorflow as tf

    raw = np.random.default_rng(0).integers(256, size=(1024, 32, 32, 3)).astype("uint8")

    def augmented(image: Any) -> Any:
        return tf.image.random_flip_left_right(tf.cast(image, tf.float32) / 255.0, seed=1)

    dataset = (
        tf.data.Dataset.from_tensor_slices(raw)
        .shuffle(1024, seed=1)
        .map(augmented, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(run.global_batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )

    @tf.function  # type: ignore[untyped-decorator]
    def take(iterator: Any) -> Any:
        # One element of the batch is read, so that the batch is needed, and no time is spent on it.
        taken = run.strategy.run(lambda batch: batch[0, 0, 0, 0], args=(next(iterator),))
        return run.strategy.reduce("MEAN", taken, axis=None)

    for _loss in run.steps(take, dataset):
        pass


def saving(run: Any) -> None:
    """Each step writes a checkpoint of a model and its optimizer, 6 MB; of workers, each to a folder of its own."""
    checkpoint = _checkpoint(run)
    for path in _steps(run):
        checkpoint.write(path)


def restoring(run: Any) -> None:
    """Each step reads the checkpoint that was written before the first, into variables on every replica."""
    checkpoint = _checkpoint(run)
    written = checkpoint.write(str(run.rank_path / "checkpoint"))
    for _ in _steps(run):
        checkpoint.read(written).assert_consumed()


def _checkpoint(run: Any) -> Any:
    import keras
    import tensorflow as tf

    with run.strategy.scope():
        dense = [keras.layers.Dense(512), keras.layers.Dense(512), keras.layers.Dense(512)]
        model = keras.Sequential([keras.Input((512,)), *dense])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    return tf.train.Checkpoint(model=model, optimizer=optimizer)


def _steps(run: Any) -> Any:
    """A path to write to for each step; the batch of a step is not used."""
    import tensorflow as tf

    for _batch in run.batches(tf.data.Dataset.range(8).batch(8)):
        yield str(run.rank_path / "checkpoint")
        run.record()
