"""Show that weights multiply the mean of all losses if neither labels nor predictions have a further axis.

Expected:
The loss is that of columns, 0: the only wrong prediction has the weight 0.
"""

import sys

import keras
import numpy as np

labels, predicted, weights = np.array([0.0, 1.0]), np.array([0.0, 3.0]), np.array([1.0, 0.0])
loss = keras.losses.MeanSquaredError()
column = float(loss(labels[:, None], predicted[:, None], sample_weight=weights))
found = float(loss(labels, predicted, sample_weight=weights))
if found != column:
    sys.exit(f"the loss is {found}, and of columns {column}")
