"""Show that Equalization counts the colors of all images of a batch together.

Expected:
An image becomes the same, whatever other images are in the batch.
"""

import sys

import keras
import numpy as np

images = np.arange(32, dtype="float32").reshape(2, 4, 4, 1) * 4
layer = keras.layers.Equalization()
alone, together = (int(np.array(layer(one))[0].max()) for one in (images[:1], images))
if alone != together:
    sys.exit(f"the brightest pixel of the first image becomes {alone} alone, and {together} beside another one")
