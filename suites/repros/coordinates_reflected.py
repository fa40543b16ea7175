"""Show that map_coordinates with fill_mode="reflect" leaves out the first number before an image.

Expected:
The row a b c d is continued to the left by d c b a, as documented, so that place -1 has a.
"""

import sys

import keras
import numpy as np

row, places = np.float32([1, 2, 3, 4]), np.float32([[-4, -3, -2, -1]])
found = keras.ops.image.map_coordinates(row, places, order=0, fill_mode="reflect")
if list(np.asarray(found)) != [4, 3, 2, 1]:
    sys.exit(f"the places before 1 2 3 4 have {np.asarray(found)}")
