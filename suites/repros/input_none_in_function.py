"""Show that a tf.function cannot read elements with a None from a distributed dataset with an uneven last batch.

Expected:
The step runs, and the idle replica gets a None, as in eager mode.
"""

import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
dataset = tf.data.Dataset.range(4).map(lambda x: (x, None)).batch(2)
try:
    tf.function(lambda iterator: next(iterator))(iter(strategy.experimental_distribute_dataset(dataset)))
except AttributeError as error:
    sys.exit(str(error).strip().splitlines()[-1].strip())
