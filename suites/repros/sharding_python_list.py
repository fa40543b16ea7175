"""Show that a list of Python can be assigned to a variable of float64, but not if it is in shards.

Expected:
The list is converted to the dtype of the variable, as it is for a variable that is not in shards.
"""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

parts = [tf.Variable([0.0, 1.0], dtype="float64"), tf.Variable([2.0], dtype="float64")]
parts[0].assign([3.0, 4.0])
try:
    ShardedVariable(parts).assign([5.0, 6.0, 7.0])
except (ValueError, TypeError) as error:
    sys.exit(f"{type(error).__name__}: {error}".replace("\n", " "))
