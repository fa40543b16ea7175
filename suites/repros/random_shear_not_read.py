"""Show that RandomShear with one number as its factor cannot be read from its configuration.

Expected:
The layer is read, and so is a model with it. The configuration has the factor as two numbers, from -0.5 to 0.5, and
the class refuses a negative one.
"""

import sys

import keras

layer = keras.layers.RandomShear(x_factor=0.5)
try:
    keras.layers.RandomShear.from_config(layer.get_config())
except TypeError:
    sys.exit("the layer cannot be read")
