"""Show that ops.scan of a dictionary of KerasTensors raises a KeyError.

Expected:
The function gets a dictionary, as for tensors.
"""

import sys

import keras

xs = {"a": keras.KerasTensor((4, 5)), "b": keras.KerasTensor((4, 5))}
try:
    keras.ops.scan(lambda c, x: (c + x["a"] * x["b"], c), keras.KerasTensor((5,)), xs)
except (KeyError, TypeError, ValueError) as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
