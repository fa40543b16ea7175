"""Show that R2Score with num_regressors counts each output of an example as an example.

Expected:
The adjusted score of two equal outputs is that of one of them.
"""

import sys

import keras
import numpy as np

truth, predicted = np.array([[1.0], [2.0], [4.0], [7.0]]), np.array([[1.5], [2.0], [3.0], [7.5]])
scores = []
for outputs in (1, 2):
    metric = keras.metrics.R2Score(num_regressors=1)
    metric.update_state(np.repeat(truth, outputs, 1), np.repeat(predicted, outputs, 1))
    scores.append(round(float(metric.result()), 4))
if scores[0] != scores[1]:
    sys.exit(f"the adjusted score of one output is {scores[0]}, and that of the same output twice {scores[1]}")
