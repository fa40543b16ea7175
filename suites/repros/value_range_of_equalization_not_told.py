"""Show that Equalization cannot say that its range of values is impossible.

Expected:
A ValueError about value_range, as of RandomBrightness.
"""

import sys

import keras

try:
    keras.layers.Equalization(value_range=0)
except AttributeError as error:
    sys.exit(str(error))
except ValueError:
    pass
