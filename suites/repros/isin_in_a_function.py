"""Show that ops.isin cannot be used in a function.

Expected:
The result is [True False], as in a plain call.
"""

import sys

import keras
import tensorflow as tf


@tf.function(autograph=False)
def function(x, y):
    return keras.ops.isin(x, y)


try:
    function(tf.constant([1, 3]), tf.constant([1, 2]))
except TypeError as error:
    sys.exit(type(error).__name__)
