"""Show that Optimizer.apply raises if each variable is overwritten by its gradient.

Expected:
Each variable gets the value of its gradient, and the optimizer counts a step.
"""

import sys

import keras
import tensorflow as tf

weight = keras.Variable(0.0)
weight.overwrite_with_gradient = True
optimizer = keras.optimizers.SGD(1.0)
optimizer.build([weight])
try:
    optimizer.apply([tf.constant(3.0)], [weight])
except (ValueError, TypeError, IndexError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
