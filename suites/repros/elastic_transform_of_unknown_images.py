"""Show that ops.image.elastic_transform returns one image if their number is not known.

Expected:
The shape is (2, 5, 7, 3).
"""

import sys

import keras
import tensorflow as tf


@tf.function(input_signature=[tf.TensorSpec((None, 5, 7, 3))], autograph=False)
def function(x):
    return keras.ops.image.elastic_transform(x, seed=1)


shape = function(tf.ones((2, 5, 7, 3))).shape
if shape[0] != 2:
    sys.exit(f"the shape is {shape}")
