"""Show that a replica without examples of a sparse batch ends the step with an error.

Expected:
The idle replica gets a sparse tensor without rows, as it gets a dense one.
"""

import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
dataset = tf.data.Dataset.range(1).map(lambda x: tf.SparseTensor([[0]], [x], [3])).batch(2)
try:
    next(iter(strategy.experimental_distribute_dataset(dataset)))
except tf.errors.InvalidArgumentError as error:
    sys.exit(f"an uneven sparse batch: {error.message[:160]}")
