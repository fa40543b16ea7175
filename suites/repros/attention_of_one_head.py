"""Show that dot_product_attention refuses one head of keys and values for several of queries.

Expected:
All heads of queries share it, as documented for multi-query attention (K == 1).
"""

import sys

import keras
import numpy as np

query, key = np.ones((2, 3, 4, 5), "float32"), np.ones((2, 6, 1, 5), "float32")
try:
    keras.ops.dot_product_attention(query, key, key)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).partition('}} ')[2][:60]}")
