"""Show that Nadam cannot be used with central storage.

Expected:
Nadam and Muon create variables without an aggregation. Keras could create them with VariableAggregation.MEAN or
ONLY_FIRST_REPLICA, as its other optimizers do with their counters, or refuse CentralStorageStrategy with an error
that names it.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.Nadam()
    optimizer.build([weight])
try:
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant(3.0), weight)]))
except ValueError as error:
    sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[:110]}")
