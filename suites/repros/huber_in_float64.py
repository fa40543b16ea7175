"""Show that the Huber loss compares a float32 number with errors in float64.

Expected:
The loss of 1 for the prediction 1 is 0.
"""

import sys

import keras
import tensorflow as tf

one = tf.ones((1, 1), tf.float64)
try:
    keras.losses.huber(one, one)
except (TypeError, tf.errors.InvalidArgumentError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
