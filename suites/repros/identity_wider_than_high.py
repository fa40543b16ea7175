"""Show that ops.eye of a few rows and more columns has another shape if its diagonal is not the main one.

Expected:
The shape is (2, 4), as it is asked for.
"""

import sys

import keras

found = tuple(keras.ops.eye(2, 4, k=1).shape)
if found != (2, 4):
    sys.exit(f"the shape is {found}")
