"""Show that Dropout refuses a noise shape that does not fit only when it has numbers.

Expected:
The layer refuses it when the model is made, as other layers refuse shapes that do not fit.
"""

import sys

import keras

keras.layers.Dropout(0.5, noise_shape=(2, 1, 4))(keras.KerasTensor((3, 5, 4)), training=True)
sys.exit("no error for a noise shape of 2 rows and an input of 3 rows")
