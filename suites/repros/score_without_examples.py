"""Show that some metrics have no result before their first update.

Expected:
The result is 0, as that of other metrics before an update, and as that of these metrics after reset_state.
"""

import sys

import keras

found = []
for metric in (keras.metrics.F1Score(), keras.metrics.R2Score(), keras.metrics.AUC(multi_label=True)):
    try:
        metric.result()
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
if found:
    sys.exit("; ".join(found))
