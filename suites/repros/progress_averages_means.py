"""Show that the progress bar of an epoch ends with another loss than the history has.

Expected:
The bar ends with the mean over all examples, which is 2. Keras gives the bar this mean after each batch, and the bar
averages the means once more.
"""

import contextlib
import io
import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.0), "mse")
with contextlib.redirect_stdout(io.StringIO()) as shown:
    model.fit(np.ones((2, 1)), np.array([[0.0], [2.0]]), batch_size=1, shuffle=False, verbose=1)
if not shown.getvalue().rstrip().endswith("loss: 2.0000"):
    sys.exit(f"the losses of two batches are 0 and 4, and the bar ends with {shown.getvalue().split()[-1]}")
