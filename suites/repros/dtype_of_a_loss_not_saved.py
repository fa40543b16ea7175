"""Show that a loss that is read from its configuration computes in another precision.

Expected:
The types are equal.
"""

import sys

import keras

loss = keras.losses.Huber(dtype="float64")
copy = keras.losses.Huber.from_config(loss.get_config())
if copy.dtype != loss.dtype:
    sys.exit(f"the dtype is {copy.dtype} in place of {loss.dtype}")
