"""Show that RandomSaturation lets colors leave the value range, because it takes saturation for a number of this range.

Expected:
Colors are fully saturated at most, and stay in the value range.
"""

import sys

import keras
import numpy as np

images = np.full((1, 2, 2, 3), (200, 100, 50), "float32")
found = np.array(keras.layers.RandomSaturation((0.8, 0.8), value_range=(0, 255))(images, training=True))
if found.min() < 0 or found.max() > 255:
    sys.exit(f"the pixel (200, 100, 50) becomes {np.round(found[0, 0, 0]).tolist()}")
