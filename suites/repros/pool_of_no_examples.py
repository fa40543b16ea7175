"""Show that global max pooling cannot take a batch without examples.

Expected:
The shape is (0, 4), as for average pooling.
"""

import sys

import keras
import numpy as np

try:
    keras.layers.GlobalMaxPooling1D()(np.ones((0, 5, 4), "float32"))
except Exception as error:
    sys.exit(type(error).__name__)
