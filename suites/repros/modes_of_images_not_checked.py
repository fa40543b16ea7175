"""Show that Resizing takes an interpolation that does not exist.

Expected:
A ValueError that lists the interpolations, as of RandomZoom.
"""

import sys

import keras

try:
    keras.layers.Resizing(4, 4, interpolation="no_such")
except ValueError:
    sys.exit()
sys.exit("Resizing has an interpolation that does not exist")
