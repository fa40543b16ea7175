"""Show that MaxPooling2D takes a padding that does not exist.

Expected:
A ValueError that lists the paddings, as of Conv2D.
"""

import sys

import keras

try:
    keras.layers.MaxPooling2D(padding="no_such")
except ValueError:
    sys.exit()
sys.exit("MaxPooling2D has a padding that does not exist")
