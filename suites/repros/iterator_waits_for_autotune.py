"""Show that dropping an iterator of a dataset may wait for the thread of its autotuning, for up to a minute.

Expected:
The iterator is gone at once. Its thread is woken before the flag is set that ends it. If it looks at the flag too
early, it sleeps again until its next turn. The time between two turns doubles each time, from 10 milliseconds to
a minute, and the process waits for the thread. fit of Keras drops an iterator at its end and after each evaluation.
"""

import os
import sys
import time

import tensorflow as tf

data = tf.data.Dataset.range(8).map(lambda number: number + 1)
iterators, begin = [], time.monotonic()
while time.monotonic() < begin + 2 or len(iterators) < 200:
    iterators.append(iter(data))
    next(iterators[-1])
while iterators:
    begin = time.monotonic()
    iterators.pop(0)
    if time.monotonic() - begin > 0.5:
        print("one of the iterators was waited for", file=sys.stderr)
        os._exit(1)  # the others would be waited for, too
