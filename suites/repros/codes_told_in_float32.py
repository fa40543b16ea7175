"""Show that a model is told that codes of words are float32, and they are int64.

Expected:
The type that a model is told is the type of the result.
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.StringLookup(vocabulary=["one", "two"], output_mode="multi_hot")
told = layer(keras.Input((2,), dtype="string")).dtype
given = layer(tf.constant([["one", "two"]])).dtype.name
if told != given:
    sys.exit(f"a model is told {told}, and the result is {given}")
