"""Show that the gradient of a reduction over an axis in int64 raises in a tf.function with an unknown shape.

Expected:
It is that of an axis in int32, as it was up to TensorFlow 2.18.
"""

import sys

import tensorflow as tf


@tf.function(input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([1], tf.int64)])
def gradient(x, axis):
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_mean(x, axis)
    return tape.gradient(total, x)


try:
    gradient(tf.ones([2, 3]), tf.constant([1], tf.int64))
except TypeError as error:
    sys.exit(f"the gradient of reduce_mean raises {str(error).splitlines()[0]}")
