"""Show that label_smoothing divides by the size of the last axis, and not by the number of classes on the given axis.

Expected:
The smoothed labels of three classes on axis 1 add up to 1, so that the loss of equal shares is log 3.
"""

import sys

import keras
import numpy as np

labels = np.moveaxis(np.eye(3)[[[0, 1, 2, 0, 1]]], -1, 1)  # one example, three classes, five places
loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.5, axis=1)(labels, np.full((1, 3, 5), 1 / 3))
if abs(float(loss) - np.log(3)) > 1e-4:
    sys.exit(
        f"the loss of equal shares of three classes is {np.log(3):.4f}, and with label_smoothing {float(loss):.4f}"
    )
