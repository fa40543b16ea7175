"""Show that PreemptionCheckpointHandler without a folder raises a TypeError about the constructor of its own error.

Expected:
The error that the handler means to raise, with its message: a folder is needed.
"""

import sys

import tensorflow as tf

try:
    tf.distribute.experimental.PreemptionCheckpointHandler(None, tf.train.Checkpoint(v=tf.Variable(1.0)))
except TypeError as error:
    sys.exit(f"TypeError: {error}")
except (ValueError, tf.errors.InvalidArgumentError):
    pass
