"""Show that DTensor cannot compute the gradient of softmax in float64 over an axis in shards.

Expected:
The gradient, as in TensorFlow 2.21. Since then it has a OneHot, which DTensor makes as long as the whole axis.
"""

import sys

import tensorflow as tf
from tensorflow.experimental import dtensor

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mesh = dtensor.create_mesh([("x", 2)], device_type="CPU")
rows = dtensor.relayout(tf.ones([4, 6], tf.float64), dtensor.Layout(["unsharded", "x"], mesh))
weights = dtensor.copy_to_mesh(tf.ones([4, 6], tf.float64), dtensor.Layout.replicated(mesh, 2))
try:
    tf.function(lambda rows, weights: tf.gradients(tf.nn.softmax(rows) * weights, rows))(rows, weights)
except tf.errors.UnknownError as error:
    sys.exit(error.message.partition("error: ")[2].partition("\n")[0])
