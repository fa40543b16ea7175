"""Show that tf.train.Checkpoint does not say which file is incomplete.

Expected:
The error names the file or the checkpoint, as it does if a bit of the file has changed.
"""

import pathlib
import sys
import tempfile

import tensorflow as tf

checkpoint = tf.train.Checkpoint(v=tf.Variable(tf.zeros([9])))
path = checkpoint.write(tempfile.mkdtemp() + "/model")
file = pathlib.Path(path + ".data-00000-of-00001")
file.write_bytes(file.read_bytes()[:20])
try:
    checkpoint.read(path)
except Exception as error:
    if path not in str(error):
        sys.exit(f"{type(error).__name__}: {error}")
