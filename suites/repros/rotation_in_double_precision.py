"""Show that RandomRotation raises in a program that computes in float64.

Expected:
It rotates the images, as the other random layers change them.
"""

import sys

import keras
import numpy as np

keras.config.set_floatx("float64")
try:
    keras.layers.RandomRotation(0.2)(np.ones((2, 8, 8, 3)), training=True)
except Exception as error:
    sys.exit(f"{type(error).__name__} is raised")
