"""Show that AUC of several labels refuses lists.

Expected:
The area is 1, as for arrays, and as for one label.
"""

import sys

import keras

metric = keras.metrics.AUC(multi_label=True)
try:
    metric.update_state([[0.0, 1.0], [1.0, 0.0]], [[0.25, 0.75], [0.75, 0.25]])
except AttributeError as error:
    sys.exit(f"AttributeError: {error}")
