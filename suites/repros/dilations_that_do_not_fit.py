"""Show that a convolution returns a tensor of the input's shape if its dilated kernel does not fit.

Expected:
The call is refused, as it is for a symbol and for a large kernel without a dilation.
"""

import sys

import keras

found = keras.ops.conv(keras.ops.ones((2, 6, 4)), keras.ops.ones((2, 4, 3)), dilation_rate=9)
if tuple(found.shape) == (2, 6, 4):
    sys.exit(f"the result has the shape {tuple(found.shape)}, with 4 channels of 3 filters")
