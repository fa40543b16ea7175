"""Show that the pivots of ops.lu_factor of a KerasTensor are told to be float32.

Expected:
The type is that of the result, int32.
"""

import sys

import keras

pivots = keras.ops.lu_factor(keras.KerasTensor((3, 3)))[1]
if pivots.dtype != "int32":
    sys.exit(f"the pivots are told to be {pivots.dtype}")
