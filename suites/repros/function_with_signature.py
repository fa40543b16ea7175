"""Show that Strategy.run cannot call a tf.function that declares its arguments.

Expected:
The function runs on each replica with the replica's values, whose specification is that of the signature.
"""

import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
own = strategy.experimental_distribute_values_from_function(lambda context: tf.constant([1.0]))
double = tf.function(lambda value: value * 2.0, input_signature=[tf.TensorSpec([None])])
try:
    strategy.run(double, args=(own,))
except TypeError as error:
    sys.exit(f"TypeError: {str(error)[:120]}".replace("\n", " "))
