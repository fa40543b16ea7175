"""Show that CategoricalGeneralizedCrossEntropy pairs each label with each prediction if labels are a column.

Expected:
Both losses are equal: the documentation allows the shapes [batch_size] and [batch_size, 1]. fit always gives a column.
"""

import sys

import keras
import numpy as np

loss = keras.losses.CategoricalGeneralizedCrossEntropy()
labels, predicted = np.array([0, 1]), np.array([[0.9, 0.1], [0.1, 0.9]])
flat, column = float(loss(labels, predicted)), float(loss(labels[:, None], predicted))
if abs(flat - column) > 1e-6:
    sys.exit(f"the loss is {flat:.3}, and of a column {column:.3}")
