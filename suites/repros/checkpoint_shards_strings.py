"""Show that MaxShardSizePolicy writes a vector of strings that cannot be read again.

Expected:
The vector can be read. Slices of strings could be left whole, because RestoreV2 cannot join them.
"""

import sys
import tempfile

import tensorflow as tf

options = tf.train.CheckpointOptions(experimental_sharding_callback=tf.train.experimental.MaxShardSizePolicy(4))
checkpoint = tf.train.Checkpoint(v=tf.Variable(["a", "bcd", "ef"]))
path = checkpoint.write(tempfile.mkdtemp() + "/c", options=options)
try:
    checkpoint.read(path)
except tf.errors.InvalidArgumentError as error:
    sys.exit(f"read: {error.message}")
