"""Show that ops.average of a KerasTensor takes no several axes.

Expected:
The shape is (3,), as for a tensor.
"""

import sys

import keras

try:
    keras.ops.average(keras.KerasTensor((2, 3, 4)), axis=(0, 2))
except TypeError as error:
    sys.exit(f"TypeError: {error}")
