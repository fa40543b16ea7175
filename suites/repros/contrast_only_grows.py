"""Show that RandomContrast never lowers the contrast if its factor is one number.

Expected:
The factor is between 1 - 0.4 and 1 + 0.4, as documented, so that it is below 1 for about half of the images.
"""

import sys

import keras
import numpy as np

images = np.tile(np.array([100, 140], "float32").reshape(1, 1, 2, 1), (64, 1, 1, 1))
found = np.array(keras.layers.RandomContrast(0.4, seed=1)(images, training=True))
factors = (found[:, 0, 1, 0] - found[:, 0, 0, 0]) / 40
if factors.min() >= 1:
    sys.exit(f"the factors of 64 images are between {factors.min():.2f} and {factors.max():.2f}")
