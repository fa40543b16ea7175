"""Show that GroupQueryAttention adds the penalty of its outputs twice.

Expected:
Four penalties: of the queries, the keys, the values and the outputs, as MultiHeadAttention has.
"""

import sys

import keras
import numpy as np

layer = keras.layers.GroupQueryAttention(2, 2, 1, activity_regularizer="l2")
layer(np.ones((2, 5, 4)), np.ones((2, 5, 4)))
if len(layer.losses) != 4:
    sys.exit(f"there are {len(layer.losses)} penalties: {[float(one) for one in layer.losses]}")
