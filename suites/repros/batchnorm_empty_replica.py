"""Show that a replica without examples makes the moving statistics of BatchNormalization NaN.

Expected:
A replica without examples leaves the moving statistics as they are.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 1))
x = strategy.experimental_distribute_values_from_function(lambda c: tf.ones((2 - 2 * c.replica_id_in_sync_group, 1)))
strategy.run(lambda x: layer(x, training=True), args=(x,))
means = [float(one[0]) for one in strategy.experimental_local_results(layer.moving_mean.value)]
if means[1] != means[1]:
    sys.exit(f"the moving means of the replicas are {means}")
