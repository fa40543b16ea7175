"""Show that operations refuse impossible numbers only of arrays.

Expected:
A symbol is refused too, so that no model is made that fails when it is used.
"""

import sys

import keras

told = keras.ops.top_k(keras.KerasTensor((2, 4)), k=9)[0].shape
try:
    keras.ops.top_k(keras.ops.ones((2, 4)), k=9)
except Exception as error:
    sys.exit(f"a symbol has the shape {told}, and an array raises {type(error).__name__}")
