"""Show that normalize takes the first axis for the last one.

Expected:
The norm of each column is 1.
"""

import sys

import keras
import numpy as np

found = keras.utils.normalize(np.array([[3.0, 1.0], [4.0, 0.0]]), axis=0)
if not np.allclose(found, [[0.6, 1.0], [0.8, 0.0]]):
    sys.exit(str(found))
