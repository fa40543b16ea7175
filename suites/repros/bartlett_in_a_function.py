"""Show that ops.bartlett cannot be used in a function.

Expected:
The window has 5 numbers, as in a plain call.
"""

import sys

import keras
import tensorflow as tf


@tf.function(autograph=False)
def function():
    return keras.ops.bartlett(5)


try:
    function()
except TypeError as error:
    sys.exit(type(error).__name__)
