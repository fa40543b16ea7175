"""Show that a loss that is read from its configuration has the default of a parameter that it was made with.

Expected:
The copy has the same value for an error of 2: 0.25 * (2 - 0.125) = 0.46875.
"""

import sys

import keras

loss = keras.losses.Huber(delta=0.25)
copy = keras.losses.Huber.from_config(loss.get_config())
found = float(copy([[0.0]], [[2.0]]))
if abs(found - 0.46875) > 1e-6:
    sys.exit(f"the loss is {found} in place of 0.46875")
