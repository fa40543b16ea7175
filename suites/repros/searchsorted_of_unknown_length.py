"""Show that ops.searchsorted has another type if the length is not known.

Expected:
The type is int32, as in a plain call.
"""

import sys

import keras
import tensorflow as tf


@tf.function(input_signature=[tf.TensorSpec((None,))], autograph=False)
def function(x):
    return keras.ops.searchsorted(x, [0.5])


dtype = function(tf.constant([0.0, 1.0])).dtype
if dtype != "int32":
    sys.exit(f"the type is {dtype.name}")
