"""Show that a strategy refuses a place beside a variable of no strategy with an AttributeError.

Expected:
A ValueError that says which variables have a place.
"""

import sys

import tensorflow as tf

variable = tf.Variable(1.0)
strategy = tf.distribute.OneDeviceStrategy("CPU:0")
try:
    with strategy.scope():
        strategy.extended.colocate_vars_with(variable).__enter__()
except (ValueError, AttributeError) as error:
    if not isinstance(error, ValueError):
        sys.exit(f"colocate_vars_with raises {type(error).__name__}: {error}")
