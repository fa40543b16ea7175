"""Show that ops.kron tells another shape than it returns if its tensors have different ranks.

Expected:
The shape is (2, 9), as for tensors.
"""

import sys

import keras

kron = getattr(keras.ops, "kron", None)
if kron is not None:
    told = kron(keras.KerasTensor((2, 3)), keras.KerasTensor((3,))).shape
    if told != (2, 9):
        sys.exit(f"told {told}, is {tuple(kron(keras.ops.ones((2, 3)), keras.ops.ones((3,))).shape)}")
