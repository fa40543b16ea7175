"""Show that predict raises UnboundLocalError if there are no examples.

Expected:
An array of the shape (0, 1), or a ValueError that says that there are no examples. evaluate takes the same array.
"""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
try:
    model.predict(np.ones((0, 2)), verbose=0)
except UnboundLocalError as error:
    sys.exit(f"no examples: {type(error).__name__}: {error}")
