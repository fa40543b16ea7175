"""Show that the initializer Identity that is read from its configuration has the gain 1.

Expected:
The copy makes 2 of the gain 2.
"""

import sys

import keras

made = keras.initializers.Identity(gain=2.0)
copy = keras.initializers.Identity.from_config(made.get_config())
found = float(copy((1, 1))[0, 0])
if found != 2:
    sys.exit(f"the value is {found} in place of 2")
