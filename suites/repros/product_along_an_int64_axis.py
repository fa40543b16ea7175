"""Show that the gradient of a product along an axis in int64 raises.

Expected:
It is that of an axis in int32.
"""

import sys

import tensorflow as tf

x = tf.ones([2, 3])
try:
    with tf.GradientTape() as tape:
        tape.watch(x)
        product = tf.reduce_prod(x, tf.constant([1], tf.int64))
    tape.gradient(product, x)
except Exception as error:
    sys.exit(f"the gradient of reduce_prod raises {type(error).__name__}")
