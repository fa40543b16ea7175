"""Show that Nadam of tf_keras makes the weights of all replicas but the first infinite.

Expected:
Both replicas have the weights of the first one, because they apply the same gradient.
"""

import sys

import tensorflow as tf
import tf_keras as keras

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = tf.Variable(1.0)
    optimizer = keras.optimizers.Nadam(0.5)
    optimizer.build([weight])
strategy.run(lambda: optimizer.apply_gradients([(tf.constant(3.0), weight)]))
found = [float(part) for part in strategy.experimental_local_results(weight)]
if found[0] != found[1]:
    sys.exit(f"after one step the replicas have the weights {found}")
