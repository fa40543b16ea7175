"""Show that apply_gradients does not add up the gradients of the replicas.

Expected:
Both copies of the weight move by the sum of the gradients, 1 + 2.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight, sgd = keras.Variable(0.0), keras.optimizers.SGD(1.0)
    sgd.build([weight])
numbers = strategy.experimental_distribute_values_from_function(lambda replica: replica.replica_id_in_sync_group + 1.0)
strategy.run(lambda one: sgd.apply_gradients([(tf.convert_to_tensor(one), weight)]), (numbers,))
if float(weight.numpy()) != -3:
    sys.exit(f"the replicas have the gradients 1 and 2, and the weight moves by {-float(weight.numpy())}")
