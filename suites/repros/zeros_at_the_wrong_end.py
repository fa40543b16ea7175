"""Show that an unrolled recurrent layer of two directions gives zeros for other times than its mask hides.

Expected:
Only the last time is masked, so that the output of the backward direction is 0 there, as without unroll=True.
"""

import sys

import keras
import numpy as np

x, mask = np.ones((1, 3, 1)), np.array([[True, True, False]])
layer = keras.layers.Bidirectional(keras.layers.GRU(1, return_sequences=True, unroll=True), merge_mode=None)
_, back = layer(x, mask=keras.ops.convert_to_tensor(mask))
found = (np.asarray(back)[0, :, 0] != 0).tolist()
if found != mask[0].tolist():
    sys.exit(f"the mask is {mask[0].tolist()}, and the outputs that are not 0 are {found}")
