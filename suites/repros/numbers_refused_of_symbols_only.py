"""Show that operations refuse impossible numbers only of symbols.

Expected:
An array is refused too, with the same exception.
"""

import sys

import keras

try:
    keras.ops.extract_sequences(keras.KerasTensor((2, 24)), 1, sequence_stride=-1)
except ValueError:
    found = keras.ops.extract_sequences(keras.ops.ones((2, 24)), 1, sequence_stride=-1)
    sys.exit(f"a symbol is refused, and an array becomes one of shape {tuple(found.shape)}")
