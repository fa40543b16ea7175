"""Show that assign_add and assign_sub round a variable of float32 to 16 bits in a layer with mixed precision.

Expected:
The variable, which has float32, is 300 after 300 calls.
"""

import sys

import keras
import tensorflow as tf


class Counts(keras.layers.Layer):
    def build(self, _shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.count.assign_add(1.0)
        return inputs


layer = Counts(dtype="mixed_bfloat16")
for _ in range(300):
    layer(tf.ones((1, 1)))
if float(layer.count.value) != 300:
    sys.exit(f"after 300 calls the count in {layer.count.dtype} is {float(layer.count.value)}")
