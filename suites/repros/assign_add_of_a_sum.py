"""Show that assign_add to a weight with the aggregation "sum" adds up the old value of each replica too.

Expected:
The variable is 12, as with tf.Variable and the aggregation SUM: only what the replicas add is summed.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    total = keras.Variable(10.0, trainable=False, aggregation="sum")
strategy.run(lambda: total.assign_add(1.0 + tf.zeros(())))
if float(total.numpy()) != 12:
    sys.exit(f"two replicas add 1 to 10: {float(total.numpy())}, and 12 with tf.Variable")
