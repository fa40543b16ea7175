"""Show that ops.segment_sum counts the numbers of segments instead of the highest one.

Expected:
There are as many segments as the highest number says, and one without rows has 0, as documented.
"""

import sys

import keras
import numpy as np

rows, segments = np.float32([1, 2, 3]), np.int32([0, 0, 2])
try:
    found = np.asarray(keras.ops.segment_sum(rows, segments))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).partition('}} ')[2][:60]}")
if found.tolist() != [3, 0, 3]:
    sys.exit(f"the sums are {found}, not [3. 0. 3.]")
