"""Show that OrthogonalRegularizer refuses weights in float64.

Expected:
It returns the penalty in float64.
"""

import sys

import keras
import tensorflow as tf

try:
    keras.regularizers.OrthogonalRegularizer()(tf.ones((2, 2), tf.float64))
except (TypeError, tf.errors.InvalidArgumentError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
