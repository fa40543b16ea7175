"""Show that a loss in float64 is divided by three replicas with the precision of float32.

Expected:
The factor 1 / 3 has the dtype of the loss, so that a loss in float64 has its precision.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
three = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
with three.scope():
    loss = keras.losses.MeanSquaredError(dtype="float64")(tf.zeros((4, 1)), tf.ones((4, 1)))
if abs(float(loss) - 1 / 3) > 1e-12:
    sys.exit(f"a third of one is {float(loss):.17f} in float64")
