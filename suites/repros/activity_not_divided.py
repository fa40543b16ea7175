"""Show that an activity regularizer is not divided by the size of the batch.

Expected:
The penalty is the mean over the examples, 1, as the documentation of regularizers says.
"""

import sys

import keras
import numpy as np

layer = keras.layers.Dense(1, kernel_initializer="ones", activity_regularizer=keras.regularizers.L2(1.0))
layer(np.ones((4, 1)))
if float(layer.losses[0]) != 1:
    sys.exit(f"each of 4 examples has a penalty of 1, and the batch has {float(layer.losses[0])}")
