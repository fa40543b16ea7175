"""Show that test_on_batch raises StopIteration in its first call.

Expected:
The method returns the loss of the batch.
"""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
try:
    model.test_on_batch(np.ones((2, 1)), np.ones((2, 1)))
except StopIteration:
    sys.exit("test_on_batch raises StopIteration")
