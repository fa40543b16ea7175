"""Show that RandomColorJitter raises if the channels come first.

Expected:
It changes the images as with the channels last.
"""

import sys

import keras
import numpy as np

images = np.random.default_rng(3).uniform(size=(2, 3, 8, 6)).astype("float32")
layer = keras.layers.RandomColorJitter((0, 1), hue_factor=0.3, saturation_factor=0.3, data_format="channels_first")
try:
    layer(images, training=True)
except Exception as error:
    sys.exit(f"{type(error).__name__} is raised")
