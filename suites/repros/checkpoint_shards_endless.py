"""Show that MaxShardSizePolicy never ends if one row is larger than the size of a file.

Expected:
The checkpoint is written, with files that hold one row each, or the size is refused with an error that names the
variable.
"""

import signal, sys, tempfile  # noqa: E401, I001
import tensorflow as tf


def stop(*_):
    sys.exit("rows of 8 bytes in files of 4 bytes: still not written after 20 s")


signal.signal(signal.SIGALRM, stop)
signal.alarm(20)
options = tf.train.CheckpointOptions(experimental_sharding_callback=tf.train.experimental.MaxShardSizePolicy(4))
tf.train.Checkpoint(v=tf.Variable([[1.0, 2.0]] * 2)).write(tempfile.mkdtemp() + "/c", options=options)
