"""Show that ops.logsumexp of a KerasTensor takes no number as axis.

Expected:
The shape is (3,), as for a tensor.
"""

import sys

import keras

try:
    keras.ops.logsumexp(keras.KerasTensor((3, 4)), axis=1)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
