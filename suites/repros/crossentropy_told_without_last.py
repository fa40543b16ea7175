"""Show that categorical_crossentropy of KerasTensors along another axis is told without the last one.

Expected:
The shape is that of the result, without the axis of the classes.
"""

import sys

import keras

x = keras.KerasTensor((2, 4, 3))
found = keras.ops.categorical_crossentropy(x, x, axis=1)
if found.shape != (2, 3):
    sys.exit(f"the shape of (2, 4, 3) without axis 1 is {found.shape}")
