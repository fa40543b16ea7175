"""Show that ops.reciprocal and ops.normalize tell float32 for float16.

Expected:
Both tell float16, which they return.
"""

import sys

import keras

x = keras.KerasTensor((2, 3), dtype="float16")
told = {name: getattr(keras.ops, name)(x).dtype for name in ("reciprocal", "normalize")}
if set(told.values()) != {"float16"}:
    sys.exit(f"told {told}")
