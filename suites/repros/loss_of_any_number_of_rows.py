"""Show that a loss takes symbols only if their number of rows is known.

Expected:
The loss is a symbol without axes, as for symbols with a known number of rows.
"""

import sys

import keras

loss = keras.losses.MeanSquaredError()
print(loss(keras.Input((1,), batch_size=4), keras.Input((1,), batch_size=4)).shape)
try:
    print(loss(keras.Input((1,)), keras.Input((1,))).shape)
except ValueError as error:
    sys.exit(f"ValueError: {error}")
