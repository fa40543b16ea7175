"""Show that ops.one_hot and ops.multi_hot of type bool raise a TypeError.

Expected:
True where the number is, and False elsewhere.
"""

import sys

import keras
import numpy as np

try:
    keras.ops.one_hot(np.array([1, 2], "int32"), 3, dtype="bool")
except TypeError as error:
    sys.exit(f"TypeError: {error}")
