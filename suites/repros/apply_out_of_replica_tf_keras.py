"""Show that tf_keras' error for gradients that are applied out of a replica does not say so.

Expected:
An error that says that apply_gradients must be called in a function that strategy.run calls, as legacy optimizers do.
"""

import sys

import tensorflow as tf
import tf_keras as keras

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0)
    try:
        optimizer.apply_gradients([(tf.constant(3.0), weight)])
    except Exception as error:
        if "replica context" not in str(error):
            sys.exit(f"{type(error).__name__}: {error}")
