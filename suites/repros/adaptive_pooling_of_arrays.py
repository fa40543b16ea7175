"""Show that adaptive pooling of ``keras.ops`` takes no arrays.

Expected:
The result has the shape (1, 2, 2, 1), as for a tensor: the other operations take arrays.
"""

import sys

import keras
import numpy as np

pool = getattr(keras.ops, "adaptive_average_pool", None)
if pool is not None:
    try:
        pool(np.ones((1, 4, 4, 1), "float32"), output_size=2, data_format="channels_last")
    except AttributeError as error:
        sys.exit(f"AttributeError: {error}")
