"""Show that TruePositives in float64 counts in float32, which cannot count beyond 2 ** 24.

Expected:
The metric counts all examples.
"""

import sys

import keras

metric = keras.metrics.TruePositives(dtype="float64")
metric.update_state([1.0], [1.0], sample_weight=[2.0**24])
metric.update_state([1.0], [1.0])
if float(metric.result()) != 2**24 + 1:
    sys.exit(f"the metric is {float(metric.result())} in place of {2.0**24 + 1}")
