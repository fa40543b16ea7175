"""Show that as_numpy_iterator refuses elements with None in them.

Expected:
It gives None in the place where the element has it.
"""

import sys

import tensorflow as tf

dataset = tf.data.Dataset.range(1).map(lambda x: (x, None))
try:
    next(dataset.as_numpy_iterator())
except AttributeError as error:
    sys.exit(f"as_numpy_iterator of an element with None raises {error}")
