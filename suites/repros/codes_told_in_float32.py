"""Show that the symbolic result of codes of words is float32, and the real one int64.

Expected:
Both have one type.
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.StringLookup(vocabulary=["one", "two"], output_mode="multi_hot")
told = layer(keras.Input((2,), dtype="string")).dtype
given = layer(tf.constant([["one", "two"]])).dtype.name
if told != given:
    sys.exit(f"the symbolic result is {told}, and the real one {given}")
