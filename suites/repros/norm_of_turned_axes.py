"""Show that ops.norm with keepdims cannot put singular values where the axes were, or puts them elsewhere.

Expected:
The result has the shape that NumPy gives it.
"""

import sys

import keras
import numpy as np

x, given = np.ones((2, 3, 4), "float32"), {"ord": 2, "axis": (2, 0), "keepdims": True}
try:
    found = keras.ops.norm(x, **given).shape
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).partition('}} ')[2][:60]}")
if tuple(found) != np.linalg.norm(x, **given).shape:
    sys.exit(f"the shape is {tuple(found)}")
