"""Show that ema_overwrite_frequency fails in a tf.function on several replicas.

Expected:
The weights are overwritten every second step, in a tf.function too. A tf.cond around merge_call cannot be traced for
several replicas: the condition could choose between two values instead.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_overwrite_frequency=2)
    optimizer.build([weight])
try:
    tf.function(strategy.run)(lambda: optimizer.apply_gradients([(tf.constant(3.0), weight)]))
except (RuntimeError, ValueError) as error:
    sys.exit(f"{type(error).__name__}: merge_call{str(error).partition('merge_call')[2][:90]}")
