"""Show that a slice after a new axis is taken from each shard of a variable.

Expected:
A slice means the same for a variable in shards as for a tensor, or is refused.
"""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0, 1]), tf.Variable([2, 3])])
found, expected = variable[tf.newaxis, 1:].numpy().tolist(), [[1, 2, 3]]
if found != expected:
    sys.exit(f"[0, 1, 2, 3][newaxis, 1:] is {found} in shards, and {expected} otherwise")
