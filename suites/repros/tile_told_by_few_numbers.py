"""Show that ops.tile of a KerasTensor takes no tuple with fewer numbers than axes.

Expected:
The shape is (3, 8), as for a tensor.
"""

import sys

import keras

try:
    keras.ops.tile(keras.KerasTensor((3, 4)), (2,))
except TypeError as error:
    sys.exit(f"TypeError: {error}")
