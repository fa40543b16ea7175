"""Show that HierarchicalCopyAllReduce leaves out a replica if the number of GPUs is odd. No error is raised.

``aggregate_gradients_using_hierarchical_copy`` divides the devices into two groups of ``number // 2``, and the last
device belongs to none.

Expected:
The sum of all three replicas, 1 + 2 + 3 = 6, as on CPUs. It is 1 + 2 = 3.
"""

import sys

import tensorflow as tf

devices = tf.config.list_physical_devices("GPU")[:1]
if not devices:
    sys.exit(0)
tf.config.set_logical_device_configuration(devices[0], [tf.config.LogicalDeviceConfiguration(1024)] * 3)
operations = tf.distribute.HierarchicalCopyAllReduce()
strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1", "GPU:2"], cross_device_ops=operations)
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


def replica_function():
    total.assign_add(tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group + 1, tf.float32))


strategy.run(replica_function)
if float(total) != 6:
    sys.exit(f"the sum of 1, 2 and 3 over three replicas is {float(total):g}")
