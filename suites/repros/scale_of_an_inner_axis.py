"""Show that RMSNormalization fails for an axis that is not the last one.

Expected:
The layer scales each entry of the axis, as LayerNormalization does.
"""

import sys

import keras
import numpy as np

layer = keras.layers.RMSNormalization(axis=1)
try:
    layer(np.ones((2, 3, 4), "float32"))
except Exception as error:
    sys.exit(f"{type(error).__name__}: the scale of an inner axis is not broadcast")
