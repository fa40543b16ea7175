"""Show that scatter operations of replicas ignore the aggregation of a variable in central storage.

Expected:
scatter_add of a variable with VariableAggregation.MEAN adds the mean of what the replicas give, 2 here, as it does with
MirroredStrategy, and as assign_add does with both. It adds the slices of every replica in turn.
"""

import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
with strategy.scope():
    table = tf.Variable([0.0, 0.0], aggregation=tf.VariableAggregation.MEAN)
strategy.run(lambda: table.scatter_add(tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]))))
if float(table[1]) != 2.0:
    sys.exit(f"the mean of 2 and 2 is added as {float(table[1])}")
