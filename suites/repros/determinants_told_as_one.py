"""Show that ops.slogdet tells one determinant for a batch of matrices.

Expected:
The shapes are (5,), as for a tensor.
"""

import sys

import keras

told = [one.shape for one in keras.ops.slogdet(keras.KerasTensor((5, 3, 3)))]
if told != [(5,), (5,)]:
    sys.exit(f"told {told}")
