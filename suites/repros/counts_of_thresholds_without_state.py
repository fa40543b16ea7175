"""Show that stateless_result of a metric that counts above several thresholds has the state of the metric itself.

Expected:
The count is that of the state which is given, 1 for each threshold.
"""

import sys

import keras
import numpy as np

metric = keras.metrics.TruePositives(thresholds=[0.25, 0.75])
state = [variable.value for variable in metric.variables]
state = metric.stateless_update_state(state, [1.0], [1.0])
found = np.asarray(metric.stateless_result(state)).tolist()
if found != [1.0, 1.0]:
    sys.exit(f"the counts are {found}, of the state {np.asarray(state[0]).tolist()}")
