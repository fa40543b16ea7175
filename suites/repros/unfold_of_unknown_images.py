"""Show that ops.unfold takes no unknown number of images.

Expected:
The shape is (2, 24, 12).
"""

import sys

import keras
import tensorflow as tf


@tf.function(input_signature=[tf.TensorSpec((None, 6, 4, 5))], autograph=False)
def function(x):
    return keras.ops.unfold(x, 2)


try:
    function(tf.ones((2, 6, 4, 5)))
except TypeError as error:
    sys.exit(type(error).__name__)
