"""Show that the result of a metric is that of the first replica only.

Expected:
The sum over two replicas that add 1 and 2 is 3.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    metric = keras.metrics.Sum()
numbers = strategy.experimental_distribute_values_from_function(lambda replica: replica.replica_id_in_sync_group + 1.0)
strategy.run(lambda one: metric.update_state(tf.convert_to_tensor(one)), (numbers,))
if float(metric.result()) != 3:
    sys.exit(f"the replicas add 1 and 2, and the sum is {float(metric.result())}")
