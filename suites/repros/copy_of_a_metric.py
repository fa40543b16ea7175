"""Show that a copy of a metric has lost what the metric has counted.

Expected:
The copies have the result of the metric, 2, as the metrics of tf_keras and the models of Keras 3 do.
"""

import copy
import pickle
import sys

import keras

metric = keras.metrics.Sum()
metric.update_state([2.0])
found = [float(one.result()) for one in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)))]
if found != [2.0, 2.0]:
    sys.exit(f"the copies have {found}")
