"""Show that MaxShardSizePolicy leaves a variable without elements out of the checkpoint.

Expected:
The variable is in the checkpoint, and reading the checkpoint restores it.
"""

import sys
import tempfile

import tensorflow as tf

options = tf.train.CheckpointOptions(experimental_sharding_callback=tf.train.experimental.MaxShardSizePolicy(1000))
path = tf.train.Checkpoint(v=tf.Variable(tf.zeros([0, 3]))).write(tempfile.mkdtemp() + "/c", options=options)
found = [name for name, _ in tf.train.list_variables(path)]
if not any(name.startswith("v/") for name in found):
    sys.exit(f"the checkpoint of a variable v of shape (0, 3) has only {found}")
