"""Show that ops.clip of bytes takes -1 for the largest byte.

Expected:
The result is [1], as of NumPy and of the other backends, because 5 is limited to 1.
"""

import sys

import keras
import numpy as np

found = np.asarray(keras.ops.clip(np.array([5], "uint8"), -1, 1))
if found != [1]:
    sys.exit(f"clip(5, -1, 1) is {found.tolist()}")
