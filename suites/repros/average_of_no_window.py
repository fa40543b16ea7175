"""Show that AveragePooling refuses a window that does not fit as a symbol, and gives an empty result for numbers.

Expected:
Both are refused.
"""

import sys

import keras
import numpy as np

result = keras.layers.AveragePooling1D(9)(np.ones((3, 5, 4)))
sys.exit(f"the result has the shape {tuple(result.shape)}")
