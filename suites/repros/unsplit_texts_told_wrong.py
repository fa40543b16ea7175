"""Show that a model is told an axis of words of texts that are not split.

Expected:
With split=None each text is one word, so the shape of the numbers of two texts is (2,).
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.TextVectorization(vocabulary=["one", "two"], split=None, standardize=None)
told = layer(keras.KerasTensor((2,), "string")).shape
given = tuple(layer(tf.constant(["one", "two"])).shape)
if told != given:
    sys.exit(f"a model is told {told}, and the result is {given}")
