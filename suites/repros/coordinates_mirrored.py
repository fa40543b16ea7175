"""Show that map_coordinates with fill_mode="mirror" reads beyond the image.

Expected:
The row a b c d is continued by c b a, as documented, so that place 4 has c.
"""

import sys

import keras
import numpy as np

row, places = np.float32([1, 2, 3, 4]), np.float32([[4, 5, 6]])
try:
    found = keras.ops.image.map_coordinates(row, places, order=0, fill_mode="mirror")
except Exception as error:
    sys.exit(f"{type(error).__name__} for places after the last")
if list(np.asarray(found)) != [3, 2, 1]:
    sys.exit(f"the places after a b c d have {np.asarray(found)}")
