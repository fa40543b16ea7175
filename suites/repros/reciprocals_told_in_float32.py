"""Show that the symbolic results of ops.reciprocal and ops.normalize are float32 for float16.

Expected:
Both are float16, as the real results are.
"""

import sys

import keras

x = keras.KerasTensor((2, 3), dtype="float16")
told = {name: getattr(keras.ops, name)(x).dtype for name in ("reciprocal", "normalize")}
if set(told.values()) != {"float16"}:
    sys.exit(f"told {told}")
