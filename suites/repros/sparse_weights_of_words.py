"""Show that lookup layers with output_mode="tf_idf" and sparse=True refuse a batch.

Expected:
The result is the same as with sparse=False, as a sparse tensor. The column of each element decides its weight.
"""

import sys

import keras
import tensorflow as tf

given = {"vocabulary": ["one", "two"], "idf_weights": [0.5, 2.0], "output_mode": "tf_idf"}
try:
    keras.layers.StringLookup(**given, sparse=True)(tf.constant([["one", "two"]]))
except tf.errors.InvalidArgumentError as error:
    told = next(line for line in str(error).splitlines() if "innermost" in line)
    sys.exit(told.partition("}} ")[2].partition(" [Op")[0])
