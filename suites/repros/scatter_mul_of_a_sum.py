"""Show that scatter_mul of a variable with SUM multiplies by each replica's value, and not by their sum.

Expected:
The variable is multiplied by the sum of the values of the replicas, as scatter_add adds it, or the call is refused.
"""

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    table = tf.Variable([1.0], aggregation=tf.VariableAggregation.SUM)
strategy.run(lambda: table.scatter_mul(tf.IndexedSlices(tf.constant([5.0]), tf.constant([0]), tf.constant([1]))))
if float(table.numpy()[0]) != 10:
    raise SystemExit(f"1 * (5 + 5) is {float(table.numpy()[0])}")
