"""Show that Concatenate takes no mask of times if each time is an image.

Expected:
The mask broadcasts over all further axes, as over the features of a series.
"""

import sys

import keras
import numpy as np

x = keras.ops.convert_to_tensor(np.ones((2, 3, 4, 5)))
mask = keras.ops.convert_to_tensor(np.array([[True, True, False], [True, False, False]]))
try:
    keras.layers.Concatenate().compute_mask([x, x], [mask, mask])
except Exception as error:
    sys.exit(f"it raises {type(error).__name__}: {str(error)[-70:]}")
