"""Show that Bidirectional tells another shape than it returns if its directions have other numbers of units.

Expected:
The shape of a symbol is that of the output, (1, 5).
"""

import sys

import keras
import numpy as np

back = keras.layers.GRU(2, go_backwards=True)
layer = keras.layers.Bidirectional(keras.layers.GRU(3), backward_layer=back)
stated, real = layer(keras.KerasTensor((1, 4, 1))).shape, layer(np.ones((1, 4, 1))).shape
if tuple(stated) != tuple(real):
    sys.exit(f"it states {tuple(stated)}, and returns {tuple(real)}")
