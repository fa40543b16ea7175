"""Show that a model is told a wrong shape of one-hot codes of Hashing.

Expected:
The documentation says that the layer appends a dimension for the codes, so the shape is (2, 3, 4).
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.Hashing(4, output_mode="one_hot")
told = layer(keras.Input((3,), batch_size=2, dtype="int64")).shape
given = tuple(layer(tf.ones((2, 3), "int64")).shape)
if told != given:
    sys.exit(f"a model is told {told}, and the result is {given}")
