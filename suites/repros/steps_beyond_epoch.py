"""Show that fit trains more steps than steps_per_epoch if it is no multiple of steps_per_execution.

Expected:
Two epochs of 3 steps are 6 steps.
"""

import sys

import keras
import tensorflow as tf

data = tf.data.Dataset.from_tensors(([1.0], [1.0])).batch(1).repeat()
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=2)
model.fit(data, epochs=2, steps_per_epoch=3, verbose=0)
steps = int(model.optimizer.iterations.numpy())
if steps != 6:
    sys.exit(f"2 epochs of 3 steps are {steps} steps")
