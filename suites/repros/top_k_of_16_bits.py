"""Show that metrics of the k best predictions take no predictions of a model with mixed precision.

Expected:
The accuracy is 1.
"""

import sys

import keras
import tensorflow as tf

right = tf.eye(3, dtype="float16")
try:
    keras.metrics.TopKCategoricalAccuracy(k=1).update_state(right, right)
except tf.errors.InvalidArgumentError as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
