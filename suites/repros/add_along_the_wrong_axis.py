"""Show that keras.ops.add adds a column to the rows if both have the same length.

Expected:
Each row gets its number, as with NumPy.
"""

import sys

import keras
import numpy as np

square, column = np.zeros((3, 3)), np.array([[1.0], [2.0], [3.0]])
found = np.asarray(keras.ops.add(square, column))
if (found != square + column).any():
    sys.exit(f"the sum is {found.tolist()}")
