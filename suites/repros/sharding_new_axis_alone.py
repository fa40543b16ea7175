"""Show that a new axis alone cannot be taken from a variable in shards.

Expected:
variable[tf.newaxis] is the whole variable with an axis in front, as for a tensor.
"""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0, 1]), tf.Variable([2, 3])])
try:
    variable[tf.newaxis]
except IndexError as error:
    sys.exit(f"[0, 1, 2, 3][newaxis] in shards: IndexError: {error}")
