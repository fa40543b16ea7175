"""Show that Discretization refuses boundaries in an array, which tf_keras takes.

Expected:
An array of boundaries means the same as a list of them.
"""

import sys

import keras
import numpy as np

try:
    keras.layers.Discretization(bin_boundaries=np.array([0.0, 1.0]))
except ValueError as error:
    sys.exit(f"ValueError: {error}")
