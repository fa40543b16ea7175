"""Show that ops.softmax takes no tuple with axes that are counted from the back.

Expected:
The axes (-2, -1) of a tensor with three axes are (1, 2).
"""

import sys

import keras
import numpy as np

x = np.ones((2, 3, 4), "float32")
try:
    found = np.asarray(keras.ops.softmax(x, axis=(-2, -1)))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:90]}")
if not np.allclose(found, 1 / 12):
    sys.exit(f"the numbers are {found[0, 0]}")
