"""Show that a replica without examples keeps old statistics of a synchronized BatchNormalization of tf_keras.

Expected:
The moving mean is 2, half of the mean of all examples, on both replicas and where it is read and saved.
"""

import sys

import tensorflow as tf
import tf_keras as keras

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layer = keras.layers.BatchNormalization(momentum=0.5, synchronized=True)
    layer.build((None, 1))
parts = strategy.experimental_distribute_values_from_function(
    lambda context: tf.fill((3 * (1 - context.replica_id_in_sync_group), 1), 4.0)
)
tf.function(lambda: strategy.run(lambda part: layer(part, training=True), args=(parts,)))()
if layer.get_weights()[2] != 2:
    sys.exit(f"the moving mean is {layer.get_weights()[2].item()} in place of 2")
