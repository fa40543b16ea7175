"""Show that a metric with an integer dtype cannot be reset.

Expected:
Its variables are 0 after the reset.
"""

import sys

import keras

metric = keras.metrics.CategoricalAccuracy(dtype="int32")
try:
    metric.reset_state()
except (ValueError, TypeError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
