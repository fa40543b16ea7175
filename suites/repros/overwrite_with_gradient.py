"""Show that a variable that its gradient overwrites, as the scales of float8, differs between replicas.

Expected:
All replicas keep one value, for example the mean or, for the history of float8, the maximum of what they give. The
optimizer assigns the gradient of each replica to its own copy, and only sums the gradients of the other variables.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    scale, optimizer = keras.Variable(0.0), keras.optimizers.SGD()
    scale.overwrite_with_gradient = True
    optimizer.build([scale])
own = strategy.experimental_distribute_values_from_function(lambda c: tf.constant(3.0**c.replica_id_in_sync_group))
strategy.run(lambda value: optimizer.apply_gradients([(value, scale)]), args=(own,))
parts = [float(part.read_value()) for part in strategy.experimental_local_results(scale.value)]
if len(set(parts)) > 1:
    sys.exit(f"the copies of one variable are {parts}")
