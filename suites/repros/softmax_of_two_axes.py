"""Show that ops.softmax of two axes is wrong.

Expected:
The numbers along both axes add up to 1.
"""

import sys

import keras
import numpy as np

total = np.sum(keras.ops.softmax(np.arange(24, dtype="float32").reshape(2, 3, 4), axis=(0, 1)), (0, 1))
if not np.allclose(total, 1):
    sys.exit(f"the sums are {total}")
