"""Show that ops.eig and ops.polar of KerasTensors are told to be real.

Expected:
The type is that of the result, complex64.
"""

import sys

import keras

wrong = [f"eig {one.dtype}" for one in keras.ops.eig(keras.KerasTensor((3, 3))) if "complex" not in one.dtype]
if hasattr(keras.ops, "polar"):
    one = keras.ops.polar(keras.KerasTensor((3,)), keras.KerasTensor((3,)))
    wrong += [f"polar {one.dtype}"] if "complex" not in one.dtype else []
if wrong:
    sys.exit(f"told to be {', '.join(wrong)}")
