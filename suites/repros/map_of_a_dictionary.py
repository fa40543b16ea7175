"""Show that ops.map of a dictionary raises a KeyError.

Expected:
The function gets a dictionary with a row of each array.
"""

import sys

import keras
import numpy as np

try:
    keras.ops.map(lambda row: row["a"], {"a": np.ones((3, 4), "float32")})
except KeyError as error:
    sys.exit(f"KeyError: {error}")
