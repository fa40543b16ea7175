"""Show that ops.image.resize refuses the interpolation of areas.

Expected:
Each pixel is the mean of an area, as tf.image.resize has it.
"""

import sys

import keras
import numpy as np

try:
    keras.ops.image.resize(np.ones((2, 6, 6, 3), "float32"), (3, 3), interpolation="area")
except ValueError as error:
    sys.exit(f"ValueError: {str(error).partition('.')[0]}")
