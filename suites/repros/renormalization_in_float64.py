"""Show that renormalization of tf_keras fails in float64.

Expected:
The layer normalizes, as it does in float32. The root of epsilon should have the dtype of the deviations.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf

layer = tf.compat.v1.keras.layers.BatchNormalization(renorm=True, dtype="float64")
try:
    layer(tf.constant([[1.0], [2.0]], "float64"), training=True)
except (TypeError, tf.errors.InvalidArgumentError) as error:
    raise SystemExit(str(error).splitlines()[2]) from None
