"""Show that a stateful RNN with several cells cannot be reset.

Expected:
reset_state sets the states of all cells to 0.
"""

import sys

import keras
import numpy as np

layer = keras.layers.RNN([keras.layers.LSTMCell(2), keras.layers.LSTMCell(2)], stateful=True)
layer(np.ones((1, 3, 1)))
try:
    layer.reset_state()
except AttributeError as error:
    sys.exit(f"reset_state raises AttributeError: {error}")
