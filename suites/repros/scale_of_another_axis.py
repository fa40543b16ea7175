"""Show that RMSNormalization multiplies the last axis by its scale, whatever axis it normalizes.

If the sizes of the axes differ, it raises. If they are equal, the result is wrong.

Expected:
Element i of the scale multiplies element i of the normalized axis, as in LayerNormalization.
"""

import sys

import keras
import numpy as np

layer = keras.layers.RMSNormalization(axis=1)
layer.build((1, 2, 2))
layer.set_weights([np.array([1.0, 3.0])])
found = np.asarray(layer(np.ones((1, 2, 2))))[0]
if not np.allclose(found, [[1, 1], [3, 3]], atol=1e-3):
    sys.exit(f"the scale [1, 3] of axis 1 makes {np.round(found, 2).tolist()} of ones")
