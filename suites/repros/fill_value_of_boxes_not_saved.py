"""Show that the configuration of MaxNumBoundingBoxes lacks its fill_value, so that a copy fills boxes with -1.

Expected:
The configuration has each argument of the class.
"""

import sys

import keras

layer = keras.layers.MaxNumBoundingBoxes(max_number=2, fill_value=0)
copy = keras.layers.MaxNumBoundingBoxes.from_config(layer.get_config())
if copy.fill_value != layer.fill_value:
    sys.exit(f"the copy fills with {copy.fill_value}, and not with {layer.fill_value}")
