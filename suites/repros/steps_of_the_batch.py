"""Show that TimeDistributed makes as many steps as the batch has examples if the number of times is not known.

Expected:
The output has all times of the input.
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.TimeDistributed(keras.layers.Identity())
call = tf.function(layer, [tf.TensorSpec((None, None, 3))])
shape = tuple(call(tf.ones((2, 5, 3))).shape)
if shape != (2, 5, 3):
    sys.exit(f"the output has the shape {shape} in place of (2, 5, 3)")
