"""Show that a process ends if it drops the iterator of a distributed dataset that still reads ahead.

Expected:
The iterator waits for its thread before it gives up the dataset. The thread that reads ahead still uses the dataset,
which is destroyed first. fit of Keras drops such an iterator in each evaluation.
"""

import os
import sys

if child := os.fork():
    end = os.waitpid(child, 0)[1]
    sys.exit(f"the process ended by signal {os.WTERMSIG(end)}" if os.WIFSIGNALED(end) else 0)
import tensorflow as tf


def slow(number):
    return number + 0 * sum(range(3_000_000))


options = tf.data.Options()
options.experimental_optimization.apply_default_optimizations = False
data = tf.data.Dataset.range(8).map(lambda number: tf.numpy_function(slow, [number], tf.int64)).with_options(options)
strategy = tf.distribute.OneDeviceStrategy("cpu:0")
for _ in range(50):
    next(iter(strategy.experimental_distribute_dataset(data)))
