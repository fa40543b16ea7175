"""Show that gradient_accumulation_steps fails in a tf.function on several replicas."""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer.build([weight])
try:
    tf.function(strategy.run)(lambda: optimizer.apply_gradients([(tf.constant(3.0), weight)]))
except (RuntimeError, ValueError) as error:
    sys.exit(f"{type(error).__name__}: merge_call{str(error).partition('merge_call')[2][:90]}")
