"""Show that gradients applied out of a replica give an error that does not say so.

Expected:
An error that says that apply_gradients must be called in a function that strategy.run calls, as tf_keras has it.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0)
    try:
        optimizer.apply_gradients([(tf.constant(3.0), weight)])
    except Exception as error:
        if "replica context" not in str(error):
            sys.exit(f"{type(error).__name__}: {error}")
