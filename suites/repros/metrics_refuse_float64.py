"""Show that the top-k and F metrics of tf_keras fail in float64.

Expected:
Both give a result, as all other metrics do with dtype="float64".
"""

import sys

import tf_keras as keras

found = []
for name in ("TopKCategoricalAccuracy", "F1Score"):
    metric = getattr(keras.metrics, name)(dtype="float64")
    try:
        metric.update_state([[0.0, 1.0]], [[0.25, 0.75]])
        metric.result()
    except Exception as error:
        found.append(f"{name} raises {type(error).__name__}")
if found:
    sys.exit(f"in float64, {' and '.join(found)}")
