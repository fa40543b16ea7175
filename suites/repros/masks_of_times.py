"""Show that a recurrent layer of tf_keras draws its dropout anew for each time of an example in a tf.function.

Expected:
The mask of an example is the same at all times, as in eager mode: the inputs are the same, so the outputs are.
"""

import sys

import numpy as np
import tensorflow as tf
import tf_keras

layer = tf_keras.layers.SimpleRNN(1, dropout=0.5, recurrent_initializer="zeros", return_sequences=True)
found = np.asarray(tf.function(lambda: layer(tf.ones((8, 5, 1)), training=True))())
if not np.allclose(found, found[:, :1]):
    sys.exit(f"{(~np.isclose(found, found[:, :1]).all(axis=1)).sum()} of 8 examples have other masks at other times")
