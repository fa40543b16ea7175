"""Show that the moving statistics of BatchNormalization are not averaged over replicas.

Expected:
The moving mean is 0.5, the mean over the replicas, as in tf_keras. If Keras means to keep the statistics of the first
replica, its documentation should say so.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layer = keras.layers.BatchNormalization(momentum=0.0)
    layer.build((None, 1))
x = strategy.experimental_distribute_values_from_function(lambda c: tf.fill((2, 1), float(c.replica_id_in_sync_group)))
strategy.run(lambda x: layer(x, training=True), args=(x,))
if layer.get_weights()[2].item() != 0.5:
    sys.exit(f"the mean over replicas with 0 and 1 is {layer.get_weights()[2].item()}")
