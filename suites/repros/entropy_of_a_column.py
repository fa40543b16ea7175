"""Show that the metric BinaryCrossentropy refuses labels that have a further axis of length 1, or lack it.

Expected:
The result is that of the loss of the same name.
"""

import sys

import keras
import numpy as np

metric, given = keras.metrics.BinaryCrossentropy(), (np.array([1.0, 0.0]), np.array([[0.75], [0.25]]))
loss = float(keras.losses.BinaryCrossentropy()(*given))
try:
    metric.update_state(*given)
except ValueError as error:
    sys.exit(f"the loss is {loss:.3}, and the metric raises: {error}")
