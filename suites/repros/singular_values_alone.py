"""Show that ops.svd raises if the singular values alone are asked for.

Expected:
The singular values.
"""

import sys

import keras
import numpy as np

try:
    keras.ops.svd(np.ones((3, 2), "float32"), compute_uv=False)
except ValueError as error:
    sys.exit(f"ValueError: {error}")
