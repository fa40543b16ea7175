"""Show that ops.norm of a KerasTensor takes no axes that are counted from the back.

Expected:
The shape is (), as for a tensor.
"""

import sys

import keras

try:
    keras.ops.norm(keras.KerasTensor((3, 4)), axis=(-2, -1))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
