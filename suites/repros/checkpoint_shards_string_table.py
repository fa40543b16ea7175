"""Show that MaxShardSizePolicy cannot write a table of strings.

Expected:
The table is written and can be read, as a vector of numbers can.
"""

import sys
import tempfile

import tensorflow as tf

options = tf.train.CheckpointOptions(experimental_sharding_callback=tf.train.experimental.MaxShardSizePolicy(1000))
try:
    tf.train.Checkpoint(v=tf.Variable([["a", "bcd"]])).write(tempfile.mkdtemp() + "/c", options=options)
except ValueError as error:
    sys.exit(f"write: {error}")
