"""Show that MirroredStrategy takes a device that does not exist, and puts its replica on another one.

Expected:
An error that names the device. If soft placement is meant to apply here, the documentation of devices should say so:
a replica then shares the device of another one without notice.
"""

import sys

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:77"])
try:
    devices = strategy.experimental_local_results(strategy.run(lambda: tf.ones([]) + 1.0))
except (ValueError, RuntimeError, tf.errors.OpError):
    sys.exit(0)
sys.exit(f"the replica of CPU:77 runs on {devices[1].device}")
