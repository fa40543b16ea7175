"""Show that a loss function that returns a scalar is not divided by the number of replicas in fit.

Expected:
The weight moves by 2.0, as on one device: a scalar is divided by the number of replicas too, or refused with an error
that asks for a loss of each example.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: keras.ops.mean((y - p) ** 2))
model.fit(tf.ones((4, 1)), tf.ones((4, 1)), batch_size=4, verbose=0)
if model.get_weights()[0].item() != 2:
    sys.exit(f"the weight moved by {model.get_weights()[0].item()}, and by 2.0 on one device")
