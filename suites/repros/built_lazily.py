"""Show that an optimizer with slots cannot be built in the tf.function that applies gradients."""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.Adam()

update = lambda: optimizer.apply_gradients([(tf.constant(3.0), weight)])  # noqa: E731
try:
    tf.function(lambda: strategy.run(update), autograph=False)()
except Exception as error:
    sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[-120:]}")
