"""Show that RandomInvert subtracts colors from the upper end of the value range, whatever its lower end is.

Expected:
The darkest color becomes the brightest one, and the other way round.
"""

import sys

import keras
import numpy as np

images = np.array([-1.0, 1.0], "float32").reshape(1, 1, 2, 1)
found = np.array(keras.layers.RandomInvert((1.0, 1.0), value_range=(-1, 1))(images, training=True)).ravel().tolist()
if found != [1, -1]:
    sys.exit(f"-1 and 1 become {found[0]} and {found[1]}")
