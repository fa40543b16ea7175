"""Show that predict_on_batch returns the rows of a batch once for each replica.

Expected:
predict_on_batch returns 5 rows, or refuses a strategy with several replicas.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
found = model.predict_on_batch(tf.ones((5, 1)))
if len(found) != 5:
    sys.exit(f"predict_on_batch of 5 examples returns {len(found)} rows")
