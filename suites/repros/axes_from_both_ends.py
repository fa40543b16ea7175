"""Show that LayerNormalization gives its weights another shape for the axes (1, -1) than for (1, 2) of three.

Expected:
Both are the same axes, so that the weights of one layer fit the other one.
"""

import sys

import keras

shapes = []
for axes in ((1, 2), (1, -1)):
    layer = keras.layers.LayerNormalization(axis=axes)
    layer.build((None, 3, 4))
    shapes.append(tuple(layer.gamma.shape))
if shapes[0] != shapes[1]:
    sys.exit(f"the shapes of gamma are {shapes[0]} and {shapes[1]}")
