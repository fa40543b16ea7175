"""Show that a model is told a wrong shape of the codes of a batch of one pair.

Expected:
Each pair becomes an array of 4 numbers, so the shape is (1, 4).
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.HashedCrossing(4, output_mode="one_hot")
told = layer((keras.KerasTensor((1,), "int64"), keras.KerasTensor((1,), "int64"))).shape
given = tuple(layer((tf.ones(1, "int64"), tf.ones(1, "int64"))).shape)
if told != given:
    sys.exit(f"a model is told {told}, and the result is {given}")
