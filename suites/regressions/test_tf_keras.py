"""Defects of tf_keras."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")
"""Old versions warn about what newer packages changed, which is not what a test here is about."""


@pytest.mark.ddl_regression("59")
@pytest.mark.ddl_item("variables.checkpoint.mirrored")
@pytest.mark.ddl(strategies="mirrored", keras="tf_keras")
def test_59_slots_are_restored_before_they_are_made(ddl_strategy, tmp_path):
    """Write each slot in several shards. The slot of momentum is the sum of gradients."""
    import tensorflow as tf

    def made():
        with ddl_strategy.scope():
            weight = tf.Variable(tf.zeros((6, 2)))
            optimizer = tf.keras.optimizers.legacy.SGD(1.0, momentum=0.5)
        return tf.train.Checkpoint(weight=weight, optimizer=optimizer), weight, optimizer

    gradient = np.arange(12, dtype=np.float32).reshape(6, 2)

    def train(weight, optimizer):
        ddl_strategy.run(lambda: optimizer.apply_gradients([(tf.constant(gradient), weight)]))

    checkpoint, weight, optimizer = made()
    train(weight, optimizer)
    # Both replicas have the gradient, and the optimizer adds them up.
    shards = tf.train.experimental.MaxShardSizePolicy(16)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=shards)
    path = checkpoint.write(str(tmp_path / "saved"), options)
    restored, weight, optimizer = made()
    restored.read(path)
    train(weight, optimizer)
    first = 2 * gradient
    second = 0.5 * first + 2 * gradient
    np.testing.assert_array_equal(weight.numpy(), -(first + second), err_msg="weight after two steps")


@pytest.mark.ddl_regression("61")
@pytest.mark.ddl_item("saving.tf_checkpoint")
@pytest.mark.ddl(strategies="mirrored", keras="tf_keras")
def test_61_weights_are_saved_to_a_remote_path(ddl_strategy):
    """The file system in memory has a scheme, so that its paths count as remote."""
    import tensorflow as tf

    def made(initializer):
        with ddl_strategy.scope():
            return tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,), kernel_initializer=initializer)])

    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    saved, loaded = made("zeros"), made("ones")
    saved.set_weights([kernel, kernel[0]])
    saved.save_weights("ram://regression-61/weights")
    loaded.load_weights("ram://regression-61/weights").assert_consumed()
    for found, expected in zip(loaded.get_weights(), (kernel, kernel[0]), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg="weights that were loaded")
