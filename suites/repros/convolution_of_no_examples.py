"""Show that a convolution of no examples has the shape of its input.

Expected:
The shape is (0, 4, 3).
"""

import sys

import keras
import numpy as np

shape = keras.layers.Conv1D(3, 2, use_bias=False)(np.ones((0, 5, 4), "float32")).shape
if shape != (0, 4, 3):
    sys.exit(f"the shape is {shape}")
