"""Show that fit under a strategy does not train all batches of a generator.

Expected:
Each batch is trained once, as without a strategy. fit builds the model from a first pass over the generator, and this
pass reads ahead. A generator cannot begin again: the second pass, which trains, has only what the first one has left.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

with tf.distribute.OneDeviceStrategy("CPU:0").scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])
    model.compile(keras.optimizers.Lion(1.0), "mse", jit_compile=False)
ones = np.ones((1, 1), "float32")
model.fit(((ones, 1000 * ones) for _ in range(40)), verbose=0)
if model.get_weights()[0] != 40:
    sys.exit(f"{int(model.get_weights()[0].item())} of 40 batches are trained")
