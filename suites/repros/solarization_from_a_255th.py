"""Show that Solarization takes the lower ends of its factors for colors from 0 to 255, and the upper ends for shares.

Expected:
With the threshold (0.5, 0.5), the colors above the middle of the value range are inverted, and no others.
"""

import sys

import keras
import numpy as np

images = np.full((64, 1, 1, 1), 100, "float32")
found = np.array(keras.layers.Solarization(0.0, (0.5, 0.5), value_range=(0, 255), seed=1)(images, training=True))
changed = int((found != images).sum())
if changed:
    sys.exit(f"{changed} of 64 images with the color 100 are inverted")
