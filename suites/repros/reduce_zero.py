"""Show that Strategy.reduce fails for the number 0, for which it has a rule of its own.

Expected:
The sum of 0 over all replicas is 0. The rule for a value that is 0 on every replica reads the attribute shape, which
numbers of Python do not have. Other numbers get an error that says what is wrong with them.
"""

import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
try:
    strategy.reduce("SUM", 0.0, axis=None)
except AttributeError as error:
    sys.exit(f"{type(error).__name__}: {error}")
