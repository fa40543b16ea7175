"""Show that test_on_batch gives the mean over all batches since the model was compiled.

Expected:
The loss of the second batch is 0, as in tf_keras.
"""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile("sgd", "mse", run_eagerly=True)
losses = [float(model.test_on_batch(np.ones((2, 1)), np.full((2, 1), label))) for label in (1.0, 0.0)]
if losses != [1, 0]:
    sys.exit(f"the losses of two batches are 1 and 0, and test_on_batch returns {losses}")
