"""Show that RandomFlip and RandomCrop write what they make into the dictionary that they are given.

Expected:
The dictionary stays as it is, as with all other layers for images.
"""

import sys

import keras
import numpy as np

for layer in (keras.layers.RandomZoom(0.5), keras.layers.RandomFlip(), keras.layers.RandomCrop(2, 2)):
    images = np.ones((1, 4, 4, 3), "float32")
    given = {"images": images}
    layer(given, training=True)
    if given["images"] is not images:
        sys.exit(f"{type(layer).__name__} has replaced the images in the dictionary")
