"""Show that RandomCrop returns the whole image in inference.

Expected:
The image is resized and cropped to 2 times 2 pixels, as documented.
"""

import sys

import keras
import numpy as np

found = keras.layers.RandomCrop(2, 2)(np.ones((1, 6, 8, 3), "float32"), training=False)
if tuple(found.shape) != (1, 2, 2, 3):
    sys.exit(f"the shape is {tuple(found.shape)}")
