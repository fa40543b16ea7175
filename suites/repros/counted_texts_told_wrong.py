"""Show that a model is told one axis too many of counted words.

Expected:
The documentation of output_mode says that a text of shape (batch, 1) becomes one array, so the shape is (2, 3).
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.TextVectorization(vocabulary=["one", "two"], output_mode="count")
told = layer(keras.Input((1,), batch_size=2, dtype="string")).shape
given = tuple(layer(tf.constant([["one two"], ["two"]])).shape)
if told != given:
    sys.exit(f"a model is told {told}, and the result is {given}")
