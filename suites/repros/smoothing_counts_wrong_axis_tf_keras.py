"""Show that label_smoothing of CategoricalFocalCrossentropy divides by the size of the last axis, not of the given one.

Expected:
The same examples have the same loss, wherever the axis of the classes is.
"""

import sys

import numpy as np
import tf_keras

labels, shares = np.eye(3)[[[0, 1, 2, 0, 1]]], np.full((1, 5, 3), 1 / 3)
last, inner = (
    float(tf_keras.losses.CategoricalFocalCrossentropy(label_smoothing=0.5, axis=axis)(*given))
    for axis, given in ((-1, (labels, shares)), (1, (np.moveaxis(labels, -1, 1), np.moveaxis(shares, -1, 1))))
)
if abs(last - inner) > 1e-6:
    sys.exit(f"the loss with the classes on the last axis is {last:.4f}, and on axis 1 it is {inner:.4f}")
