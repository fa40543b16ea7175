"""Show that metrics which count, and RootMeanSquaredError, ignore the mask of a prediction.

Expected:
The masked prediction does not count, as for MeanSquaredError: the precision is 1, and the error is 0.
"""

import sys

import keras

found = {}
for metric in (keras.metrics.Precision(), keras.metrics.RootMeanSquaredError()):
    predicted = keras.ops.convert_to_tensor([[1.0], [1.0]])
    predicted._keras_mask = keras.ops.convert_to_tensor([True, False])
    metric.update_state([[1.0], [0.0]], predicted)
    found[metric.name] = float(metric.result())
if found != {"precision": 1.0, "root_mean_squared_error": 0.0}:
    sys.exit(f"the results are {found}")
