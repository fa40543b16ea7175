"""Show that a DTensor mesh may have two axes of one name.

Expected:
The mesh is refused with a ValueError that names the axis, because a layout cannot tell the two axes apart.
"""

import sys

import tensorflow as tf
from tensorflow.experimental import dtensor

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 6)
try:
    mesh = dtensor.create_mesh([("x", 2), ("x", 3)], device_type="CPU")
except ValueError:
    sys.exit(0)
sys.exit(f"axes {mesh.dim_names}: dim_size('x') is {mesh.dim_size('x')}, but shards of 'x' may be 2 or 3")
