"""Show that ops.leaky_relu of integers tells a type that it does not return.

Expected:
Both types are the same.
"""

import sys

import keras

told = keras.ops.leaky_relu(keras.KerasTensor((3,), dtype="int32")).dtype
found = keras.ops.leaky_relu(keras.ops.ones((3,), "int32")).dtype.name
if told != found:
    sys.exit(f"told {told}, is {found}")
