"""Show that a slice with a step of a variable in shards begins at a wrong row.

Expected:
A slice means the same for a variable in shards as for a tensor.
"""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0, 1]), tf.Variable([2, 3])])
found, expected = variable[-5::2].numpy().tolist(), [0, 1, 2, 3][-5::2]
if found != expected:
    sys.exit(f"[0, 1, 2, 3][-5::2] is {found} in shards, and {expected} otherwise")
