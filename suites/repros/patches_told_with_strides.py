"""Show that ops.image.extract_patches of a KerasTensor takes no strides.

Expected:
The shape is that of the result.
"""

import sys

import keras

try:
    keras.ops.image.extract_patches(keras.KerasTensor((2, 5, 7, 3)), 2, strides=1)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
