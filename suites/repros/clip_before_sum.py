"""Show that Keras clips the gradient of each replica, and not their sum.

Expected:
The norm or value of the sum of the gradients of all replicas is clipped, as on one device and as in tf_keras. If
Keras means to clip on each replica, its documentation should say so, because a model then trains in another way on
more devices.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0, clipnorm=1.0)
strategy.run(lambda: optimizer.apply_gradients([(tf.constant(3.0), weight)]))
moved = -float(keras.ops.convert_to_numpy(weight))
if moved > 1.001:
    sys.exit(f"the sum is clipped to norm 1, and the weight moved by {moved}")
