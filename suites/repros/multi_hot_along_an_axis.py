"""Show that ops.multi_hot with another axis than the last reduces the axis of the classes.

Expected:
The encoding is along the axis, so that it has one row for each row of numbers.
"""

import sys

import keras
import numpy as np

numbers = np.int32([[1, 0, 3, 3], [2, 2, 1, 4]])
found = np.asarray(keras.ops.multi_hot(numbers, num_classes=5, axis=1))
if found.shape != (2, 5):
    sys.exit(f"the shape is {found.shape}, with numbers {found.tolist()}")
