"""Show that the cross-entropy of labels is 0 for every example if the classes are sharded over a DTensor mesh.

Expected:
The losses are those of the whole logits, or the layout is refused with an error.
"""

import sys

import tensorflow as tf
from tensorflow.experimental import dtensor

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mesh = dtensor.create_mesh([("x", 2)], device_type="CPU")
labels, logits = tf.constant([0, 3]), tf.constant([[1.0, 2, 3, 4], [4, 3, 2, 1]], "float64")
expected = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy()
sharded = dtensor.relayout(logits, dtensor.Layout(["unsharded", "x"], mesh))
labels = dtensor.copy_to_mesh(labels, dtensor.Layout.replicated(mesh, 1))
found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, sharded).numpy()
if abs(found - expected).max() > 1e-3:
    sys.exit(f"losses {found} in place of {expected}")
