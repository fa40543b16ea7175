"""Show that a metric of float32 computes in float16 if the predictions are in float16, and so is infinite.

Expected:
The squared error of 300 is 90000: the documentation calls dtype, by default float32, that of the metric's computations.
"""

import sys

import keras
import tensorflow as tf

metric = keras.metrics.MeanSquaredError()
metric.update_state(tf.zeros((1, 1), "float16"), tf.fill((1, 1), tf.constant(300.0, "float16")))
if float(metric.result()) != 90000:
    sys.exit(f"a metric with dtype {metric.dtype} is {float(metric.result())} in place of 90000.0")
