"""Show that the optimizer counts a step without data at the end of each epoch of unknown size.

Expected:
Each epoch has 4 batches, so that the optimizer counts 8 steps. A schedule of the learning rate reads this count.
"""

import sys

import keras
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices(([[1.0]], [[1.0]])).repeat(4).batch(1).filter(lambda *_one: True)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, epochs=2, verbose=0)
steps = int(model.optimizer.iterations.numpy())
if steps != 8:
    sys.exit(f"2 epochs of 4 batches count as {steps} steps")
