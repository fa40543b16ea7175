"""Show that a DTensorDataset cannot be read a second time after it has ended.

Expected:
The dataset can be read again, as a tf.data.Dataset can. The end of the data is an OutOfRangeError for the reader
only.
"""

import sys

import tensorflow as tf
from tensorflow.experimental import dtensor

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
mesh = dtensor.create_mesh([("x", 2), ("y", 2)], device_type="CPU")
given = {"mesh": mesh, "layouts": dtensor.Layout(["x"], mesh), "global_batch_size": 4, "batch_dim": "x"}
dataset = dtensor.DTensorDataset(tf.data.Dataset.range(10), **given)
try:
    passes = [[dtensor.unpack(batch)[0].numpy() for batch in dataset] for _ in range(3)]
except tf.errors.CancelledError as error:
    sys.exit(f"CancelledError: {error.message[:150]}".replace("\n", " "))
