"""Show that a stateful Bidirectional that returns its states raises a TypeError.

Expected:
It returns its output, and the states of both directions, as a layer that is not stateful.
"""

import sys

import keras
import numpy as np

layer = keras.layers.Bidirectional(keras.layers.LSTM(2, stateful=True, return_state=True))
try:
    layer(np.ones((1, 3, 1)))
except TypeError as error:
    sys.exit(f"it raises TypeError: {error}")
