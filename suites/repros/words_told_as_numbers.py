"""Show that a model is told that StringLookup(invert=True) gives numbers.

Expected:
It gives words, so a model is told the type string.
"""

import sys

import keras

layer = keras.layers.StringLookup(vocabulary=["one", "two"], invert=True)
told = layer(keras.Input((2,), dtype="int64")).dtype
if told != "string":
    sys.exit(f"a model is told {told}, and the result is words")
