"""Show that BatchNormalization(synchronized=True) uses the replica's own statistics if it has a mask.

Expected:
The value is normalized by the statistics of all replicas, with a mask as without one.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layer = keras.layers.BatchNormalization(synchronized=True)
    layer.build((None, 1, 1))
ones = lambda c: tf.ones((2, 1, 1)) * 4.0 * c.replica_id_in_sync_group  # noqa: E731
x = strategy.experimental_distribute_values_from_function(ones)
found = strategy.run(lambda x: layer(x, training=True, mask=tf.ones((2, 1), bool)), args=(x,))
second = float(strategy.experimental_local_results(found)[1][0, 0, 0])
if abs(second - 1) > 0.01:
    sys.exit(f"a 4 among 0 and 4 is normalized to {second}, and to 1 without a mask")
