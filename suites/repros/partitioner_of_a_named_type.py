"""Show that partitioners by size take no name of a type.

Expected:
The name of a type means the type, as it does for tf.Variable, which hands it on to the partitioner.
"""

import sys

import tensorflow as tf

partitioner = tf.distribute.experimental.partitioners.MaxSizePartitioner(8)
try:
    partitioner(tf.TensorShape([10, 2]), "float32")
except ValueError as error:
    sys.exit(f"MaxSizePartitioner raises {error}")
