"""Show that EinsumDense of tf_keras ignores its regularizer of outputs.

Expected:
The layer has a penalty, as Dense has.
"""

import sys

import numpy as np
import tf_keras

layer = tf_keras.layers.EinsumDense("ab,bc->ac", 3, activity_regularizer="l2")
layer(np.ones((2, 4)))
if not layer.losses:
    sys.exit("EinsumDense has no penalty of its outputs")
