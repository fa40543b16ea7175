"""Show that ops.trapezoid refuses a negative axis of an array.

Expected:
The result of NumPy.
"""

import sys

import keras
import numpy as np

wanted = np.trapezoid(np.ones((3, 4)), axis=-2).tolist()
try:
    keras.ops.trapezoid(np.ones((3, 4)), axis=-2)
except Exception as error:
    sys.exit(f"NumPy returns {wanted}, and ops.trapezoid raises {type(error).__name__}")
