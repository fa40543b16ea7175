"""Show that ops.angle of what is no number is 0.

Expected:
The result is no number, as of NumPy and of the other backends.
"""

import sys

import keras
import numpy as np

if hasattr(keras.ops, "angle"):
    found = float(keras.ops.angle(np.array(np.nan, "float32")))
    if found == found:
        sys.exit(f"the angle is {found}")
