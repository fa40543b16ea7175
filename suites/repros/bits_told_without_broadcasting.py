"""Show that bitwise operations and shifts tell the shape of their first tensor.

Expected:
The shape is (2, 3), as for tensors, and as for other operations of two tensors.
"""

import sys

import keras

x, y = (keras.KerasTensor(shape, dtype="int32") for shape in ((1, 3), (2, 1)))
names = [name for name in ("and", "or", "xor", "left_shift", "right_shift") if hasattr(keras.ops, f"bitwise_{name}")]
wrong = [name for name in names if getattr(keras.ops, f"bitwise_{name}")(x, y).shape != (2, 3)]
if wrong:
    sys.exit(f"told (1, 3): {', '.join(wrong)}")
