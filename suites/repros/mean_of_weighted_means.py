"""Show that mean_with_sample_weight divides by the weights of each replica, and not of the batch.

Expected:
The sum of the losses of the replicas is 13 / 4. If each replica is meant to divide by its own weights, the
documentation of mean_with_sample_weight should say so.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
values = strategy.experimental_distribute_values_from_function(lambda c: 1.0 + c.replica_id_in_sync_group)
loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
found = strategy.run(lambda v: loss([[0.0]], [[v]], sample_weight=[2 * v - 1]), args=(values,))
total = float(strategy.reduce("SUM", found, None))
if total != 13 / 4:
    sys.exit(f"(1 * 1 + 3 * 4) / (1 + 3) is {total}")
