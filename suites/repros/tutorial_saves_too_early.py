"""Show that the program of TensorFlow's tutorial on custom loops with several workers cannot be started again.

Expected:
The tutorial (https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl) counts the epoch, and then saves.
"""

import sys
import tempfile

import tensorflow as tf

folder = tempfile.mkdtemp()
for _start in range(2):
    epoch, step_in_epoch = tf.Variable(0), tf.Variable(0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(epoch=epoch, step_in_epoch=step_in_epoch), folder, 1)
    manager.checkpoint.restore(manager.latest_checkpoint)
    total_loss, num_batches = 0.0, 0
    while step_in_epoch.numpy() < 3:
        total_loss, num_batches = total_loss + 1.0, num_batches + 1
        step_in_epoch.assign_add(1)
    if not num_batches:
        sys.exit("after a restart, the epoch that was saved has no step, and total_loss / num_batches is 0.0 / 0")
    manager.save()  # here the program ends, before epoch.assign_add(1) and step_in_epoch.assign(0)
