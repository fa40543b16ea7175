"""Show that ops.vectorized_map takes no KerasTensor.

Expected:
A KerasTensor, as from ops.map.
"""

import sys

import keras

try:
    keras.ops.vectorized_map(lambda row: row + 1, keras.KerasTensor((3, 4)))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
