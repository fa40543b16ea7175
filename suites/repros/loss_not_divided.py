"""Show that a loss is not divided by the number of replicas, so that fit makes larger steps with more replicas.

Expected:
The weight moves as on one device.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
moved = []
for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(tf.ones((4, 1)), tf.ones((4, 1)), batch_size=4, verbose=0)
    moved.append(float(model.get_weights()[0][0, 0]))
if moved[0] != moved[1]:
    sys.exit(f"the weight moved by {moved[1]}, and by {moved[0]} on one device")
