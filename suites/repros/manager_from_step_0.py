"""Show that CheckpointManager ignores last_checkpoint_step=0.

Expected:
With an interval of two steps after step 0, it saves at the steps 2 and 4.
"""

import sys
import tempfile

import tensorflow as tf

step, found = tf.Variable(0, dtype=tf.int64), []
given = {"step_counter": step, "checkpoint_interval": 2, "last_checkpoint_step": 0}
manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), tempfile.mkdtemp(), None, **given)
for number in range(1, 6):
    step.assign(number)
    if manager.save():
        found.append(number)
if found != [2, 4]:
    sys.exit(f"it saves at the steps {found}, not at [2, 4]")
