"""Show that arrays refuse an offset out of the matrix, which NumPy and symbols take.

Expected:
The result of NumPy, which is empty.
"""

import sys

import keras
import numpy as np

wanted = np.diag(np.ones((3, 4)), 9).shape
try:
    keras.ops.diag(np.ones((3, 4)), 9)
except Exception as error:
    sys.exit(f"NumPy returns the shape {wanted}, and ops.diag raises {type(error).__name__}")
