"""Show that ops.multi_hot of a KerasTensor has the type of the numbers, not the one that is asked for.

Expected:
The type is that of the result, float32.
"""

import sys

import keras

found = keras.ops.multi_hot(keras.KerasTensor((2, 4), "int32"), num_classes=5, dtype="float32")
if found.dtype != "float32":
    sys.exit(f"the type is {found.dtype}")
