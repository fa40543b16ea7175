"""Show that ops.slice of a KerasTensor takes no -1 for the rest.

Expected:
The shape is (2, 4), as for a tensor.
"""

import sys

import keras

try:
    keras.ops.slice(keras.KerasTensor((3, 4)), (1, 0), (-1, 4))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
