"""Show that the symbolic result of StringLookup(invert=True) is an integer.

Expected:
The layer gives words, so the type is string.
"""

import sys

import keras

layer = keras.layers.StringLookup(vocabulary=["one", "two"], invert=True)
told = layer(keras.Input((2,), dtype="int64")).dtype
if told != "string":
    sys.exit(f"the symbolic result is {told}, and the real one has words")
