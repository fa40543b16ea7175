"""Show that a masked loss divides by the valid examples of each replica, and not of the batch.

Expected:
The sum of the losses of the replicas is 3, the mean over the three values of the batch that are not masked. If each
replica is meant to divide by its own number of values, the documentation of masks and of distributed training should
say so.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
model = lambda c: [[[0.0], [1.0]], [[2.0], [2.0]]][c.replica_id_in_sync_group]  # noqa: E731
values = strategy.experimental_distribute_values_from_function(lambda c: tf.constant([model(c)]))
masked, loss = keras.layers.Masking(), keras.losses.MeanSquaredError()
found = strategy.run(lambda value: loss(tf.zeros((1, 2, 1)), masked(value)), args=(values,))
total = float(strategy.reduce("SUM", found, None))
if total != 3:
    sys.exit(f"the mean of the squares of 1, 2 and 2 is {total}")
