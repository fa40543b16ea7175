"""Show that a maximum over a window that is larger than the image ends the process.

Expected:
An error, or no output, as from tf.nn.avg_pool2d.
"""

import subprocess
import sys

PROGRAM = "import tensorflow as tf; print(tf.nn.max_pool2d(tf.ones((3, 6, 6, 4)), 9, 2, 'VALID').shape)"

ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True)
if ended.returncode < 0:
    sys.exit(f"the process ended with status {ended.returncode}")
