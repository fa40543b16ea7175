"""Show that rows of a variable in shards are read in the wrong order.

Expected:
The rows are in the order of the indices, as those of a variable that is not in shards.
"""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0, 1]), tf.Variable([2, 3])])
rows = variable.sparse_read(tf.constant([3, 0])).numpy().tolist()
if rows != [3, 0]:
    sys.exit(f"rows 3 and 0 of [0, 1, 2, 3] are read as {rows}")
