"""Show that ops.rot90 of a KerasTensor has the lengths of two axes exchanged if it is turned twice.

Expected:
The shape is that of the result.
"""

import sys

import keras
import numpy as np

told = keras.ops.rot90(keras.KerasTensor((3, 4)), k=2).shape
if told != keras.ops.rot90(np.ones((3, 4)), k=2).shape:
    sys.exit(f"the shape of a tensor (3, 4) is {told}")
