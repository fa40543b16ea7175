"""Show that a replica function cannot assign a Python number that it computes itself to a variable with MEAN.

Expected:
The number is assigned, as it is if all replicas have the same object. The test is for the identity of the objects,
not for equal values.
"""

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    rate = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
try:
    strategy.run(lambda: rate.assign(float("0.5")))  # each replica makes an object of its own
except AttributeError as error:
    raise SystemExit(f"AttributeError: {error}") from None
