"""Show that LayerNormalization of tf_keras gives its weights another shape for the axes (2, 1) than for (1, 2).

Expected:
Both are the same axes, so that the weights of one layer fit the other one.
"""

import sys

import tf_keras

shapes = []
for axes in ((1, 2), (2, 1)):
    layer = tf_keras.layers.LayerNormalization(axis=axes)
    layer.build((None, 3, 4))
    shapes.append(tuple(layer.gamma.shape))
if shapes[0] != shapes[1]:
    sys.exit(f"the shapes of gamma are {shapes[0]} and {shapes[1]}")
