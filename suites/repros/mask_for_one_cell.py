"""Show that an RNN with a list of one cell takes no mask.

Expected:
It returns what an RNN with the cell itself returns.
"""

import sys

import keras
import numpy as np

layer = keras.layers.RNN([keras.layers.LSTMCell(2)])
try:
    layer(np.ones((1, 3, 1)), mask=keras.ops.convert_to_tensor([[True, True, False]]))
except Exception as error:
    sys.exit(f"it raises {type(error).__name__}: {' '.join(str(error).split())[:120]}")
