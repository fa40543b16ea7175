"""Show that RandomGrayscale raises for images that come with labels.

Expected:
It changes the images and keeps the labels, as RandomInvert does.
"""

import sys

import keras
import numpy as np

given = {"images": np.ones((2, 4, 4, 3), "float32"), "labels": np.eye(2)}
keras.layers.RandomInvert()(dict(given), training=True)
try:
    keras.layers.RandomGrayscale()(dict(given), training=True)
except AttributeError:
    sys.exit("AttributeError is raised")
