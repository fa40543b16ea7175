"""Show that top-k metrics refuse the predictions of a model in half precision, and in float64.

Expected:
The label is the largest prediction, so that both results are 1, as for float32.
"""

import sys

import keras

found = []
for dtype in ("float16", "bfloat16", "float64"):
    try:
        metric = keras.metrics.SparseTopKCategoricalAccuracy(k=1)
        metric.update_state([1], keras.ops.cast([[0.25, 0.75]], dtype))
    except Exception as error:
        found.append(f"{dtype} raises {type(error).__name__}")
if found:
    sys.exit(", ".join(found))
