"""Show that ops.lu_factor takes no batch of matrices.

Expected:
Each matrix is factored, as the documentation says of its shape (..., M, M).
"""

import sys

import keras
import numpy as np

try:
    keras.ops.lu_factor(np.stack([np.eye(3, dtype="float32")] * 2))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).partition('}} ')[2][:60]}")
