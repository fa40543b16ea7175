"""Show that the mean of integers is another one if they are sharded over a DTensor mesh.

Expected:
The mean is 2 in shards too: the sum of all is divided by their number. The mean of the means of the shards is another
number.
"""

import sys

import tensorflow as tf
from tensorflow.experimental import dtensor

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mesh = dtensor.create_mesh([("x", 2)], device_type="CPU")
value = tf.constant([1, 2, 4, 1])
sharded = dtensor.relayout(value, dtensor.Layout(["x"], mesh))
expected, found = int(tf.reduce_mean(value)), int(tf.reduce_mean(sharded))
if found != expected:
    sys.exit(f"the mean of 1, 2, 4, 1 is {expected}, and {found} in two shards")
