"""Show that RandomPosterization keeps fewer bits than the number that it is given, and never as many.

Expected:
8 bits are kept, so that nothing changes.
"""

import sys

import keras
import numpy as np

images = np.tile(np.arange(256, dtype="float32").reshape(1, 16, 16, 1), (16, 1, 1, 1))
found = np.array(keras.layers.RandomPosterization(8, seed=1)(images, training=True))
colors = [len(np.unique(one)) for one in found]
if max(colors) < 256:
    sys.exit(f"16 images with 256 colors become images with {min(colors)} to {max(colors)} colors")
