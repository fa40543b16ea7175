"""Show that fit refuses a dataset that a strategy makes from a function.

Expected:
fit trains with what Strategy.distribute_datasets_from_function returns, as with a distributed dataset.
"""

import sys

import keras
import tensorflow as tf

strategy = tf.distribute.OneDeviceStrategy("CPU:0")
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
ones = tf.ones((2, 1))
given = strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensors((ones, ones)).repeat())
try:
    model.fit(given, steps_per_epoch=1, verbose=0)
except ValueError as error:
    sys.exit(f"ValueError: {error}".splitlines()[0][:100])
