"""Show that ConvLSTM2D takes 0 filters, which Conv2D refuses.

Expected:
A ValueError about the filters. Conv2D raises one.
"""

import sys

import keras

try:
    keras.layers.ConvLSTM2D(0, 2)
except ValueError:
    sys.exit()
sys.exit("ConvLSTM2D has 0 filters")
