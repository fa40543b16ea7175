"""Show that some metrics pair each label with each prediction if only one of them has a further axis of length 1.

Expected:
The results are those of the losses. MeanSquaredError and the other metrics of errors add the axis.
"""

import sys

import keras
import numpy as np

found = []
for name in ("Hinge", "SquaredHinge", "Poisson"):
    metric, loss = getattr(keras.metrics, name)(), getattr(keras.losses, name)()
    given = np.array([1.0, -1.0]), np.array([[2.0], [1.0]])
    metric.update_state(*given)
    if abs(float(metric.result()) - float(loss(*given))) > 1e-6:
        found.append(f"{name} is {float(metric.result()):.3}, its loss {float(loss(*given)):.3}")
if found:
    sys.exit("; ".join(found))
