"""Show that CategoryEncoding(sparse=True) cannot count in a dataset.

Expected:
The documentation says that the layer is safe in a tf.data pipeline.
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.CategoryEncoding(4, output_mode="count", sparse=True)
try:
    next(iter(tf.data.Dataset.from_tensors([[1, 2, 2]]).map(layer)))
except TypeError as error:
    sys.exit(f"it raises {type(error).__name__}")
