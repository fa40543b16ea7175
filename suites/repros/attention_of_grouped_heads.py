"""Show that ops.dot_product_attention raises if several heads of the query share one of the key.

Expected:
Each head of the key serves as many of the query, as the documentation says.
"""

import sys

import keras
import numpy as np

query, key = np.ones((2, 3, 4, 5), "float32"), np.ones((2, 6, 2, 5), "float32")
try:
    keras.ops.dot_product_attention(query, key, key)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0].rpartition('}} ')[2]}")
