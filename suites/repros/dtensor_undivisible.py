"""Show that a dimension that a DTensor mesh does not divide raises UnknownError, not InvalidArgumentError.

Expected:
An InvalidArgumentError or a ValueError that names the dimension, its size and the mesh (see also issue 106304).
"""

import sys

import tensorflow as tf
from tensorflow.experimental import dtensor

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mesh = dtensor.create_mesh([("x", 2)], device_type="CPU")
try:
    dtensor.relayout(tf.ones([3]), dtensor.Layout(["x"], mesh))
except tf.errors.UnknownError as error:
    sys.exit(f"UnknownError: {error.message[:150]}".replace("\n", " "))
except (ValueError, tf.errors.InvalidArgumentError):
    pass
