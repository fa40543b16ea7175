"""Show that ops.associative_scan of KerasTensors gives all of them the shape of the first.

Expected:
Each keeps its shape.
"""

import sys

import keras

xs = {"a": keras.KerasTensor((3, 4)), "b": keras.KerasTensor((3,))}
found = keras.ops.associative_scan(lambda a, b: {"a": a["a"] + b["a"], "b": a["b"] + b["b"]}, xs)
if found["b"].shape != (3,):
    sys.exit(f"the shape of b is {found['b'].shape}")
