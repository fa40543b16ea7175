"""Show that ops.kron cannot be used in a function.

Expected:
The shape is (4, 4), as in a plain call.
"""

import sys

import keras
import tensorflow as tf


@tf.function(autograph=False)
def function(x, y):
    return keras.ops.kron(x, y)


try:
    function(tf.ones((2, 2)), tf.ones((2, 2)))
except TypeError as error:
    sys.exit(type(error).__name__)
