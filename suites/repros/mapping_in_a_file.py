"""Show that a dataset with a dictionary of a class of the user cannot be saved.

Expected:
It is saved as a dictionary with the same keys.
"""

import sys
import tempfile
from collections import UserDict

import tensorflow as tf

dataset = tf.data.Dataset.range(1).map(lambda x: UserDict({"a": x}))
try:
    dataset.save(tempfile.mkdtemp())
except Exception as error:
    sys.exit(f"Dataset.save of a UserDict raises {type(error).__name__}")
