"""Show that LSTM cannot take a batch without examples.

Expected:
The shape is (0, 3), as for GRU.
"""

import sys

import keras
import numpy as np

try:
    keras.layers.LSTM(3)(np.ones((0, 5, 4), "float32"))
except Exception as error:
    sys.exit(type(error).__name__)
