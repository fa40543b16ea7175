"""Show that ops.batch_normalization of a KerasTensor with an offset and no scale raises.

Expected:
The scale may be left out, as for tensors.
"""

import sys

import keras

x, row = keras.KerasTensor((2, 4)), keras.KerasTensor((4,))
try:
    keras.ops.batch_normalization(x, row, row, axis=-1, offset=row)
except AttributeError as error:
    sys.exit(f"AttributeError: {str(error).splitlines()[0]}")
