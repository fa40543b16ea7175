"""Show that ops.one_hot gives no sparse tensor if a size is not known.

Expected:
The shape is (2, 5).
"""

import sys

import keras
import tensorflow as tf


@tf.function(input_signature=[tf.TensorSpec((None,), "int32")], autograph=False)
def function(x):
    return keras.ops.one_hot(x, 5, sparse=True)


try:
    function(tf.constant([1, 2]))
except TypeError as error:
    sys.exit(type(error).__name__)
