"""Show that a loss called in the scope, but out of run, is divided by the number of replicas.

Expected:
The loss is 1.0. Out of strategy.run there is one loss for the whole batch, and nothing is summed over replicas.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    loss = float(keras.losses.MeanSquaredError()(tf.zeros((4, 1)), tf.ones((4, 1))))
if loss != 1:
    sys.exit(f"the mean of the squares of ones is {loss}")
