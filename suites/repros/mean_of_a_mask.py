"""Show that a metric which is a mean ignores the mask of a prediction if there are no weights.

Expected:
The masked prediction does not count: the error is 0.
"""

import sys

import keras

metric = keras.metrics.MeanSquaredError()
predicted = keras.ops.convert_to_tensor([[1.0], [1.0]])
predicted._keras_mask = keras.ops.convert_to_tensor([True, False])
metric.update_state([[1.0], [0.0]], predicted)
if metric.result() != 0:
    sys.exit(f"the error is {float(metric.result())}")
