"""Show that ops.image.map_coordinates raises for a point that is far outside.

Expected:
The value there is fill_value, 0.
"""

import sys

import keras
import numpy as np

try:
    keras.ops.image.map_coordinates(np.ones((5, 7), "float32"), np.float32([[0.0, -8.0], [0.0, 12.0]]), order=0)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0].rpartition('}} ')[2].partition(', node')[0]}")
