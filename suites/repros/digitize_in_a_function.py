"""Show that ops.digitize takes no tensor of bins in a function.

Expected:
The places are [1 2], as in a plain call.
"""

import sys

import keras
import tensorflow as tf


@tf.function(autograph=False)
def function(x, y):
    return keras.ops.digitize(x, y)


try:
    function(tf.constant([0.5, 1.5]), tf.constant([0.0, 1.0, 2.0]))
except TypeError as error:
    sys.exit(type(error).__name__)
