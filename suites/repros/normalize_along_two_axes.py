"""Show that ops.normalize along two axes divides by another norm.

Expected:
The squares along both axes add up to 1.
"""

import sys

import keras
import numpy as np

found = keras.ops.normalize(np.arange(1, 25, dtype="float32").reshape(2, 3, 4), axis=(0, 1))
total = np.sum(np.square(found), (0, 1))
if not np.allclose(total, 1):
    sys.exit(f"the sums are {total}")
