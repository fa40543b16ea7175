"""Show that the loss Circle takes no symbols.

Expected:
The loss is a symbol without axes, as that of other losses.
"""

import sys

import keras

try:
    print(keras.losses.Circle()(keras.KerasTensor((4,), "int32"), keras.KerasTensor((4, 2))).shape)
except TypeError as error:
    sys.exit(f"TypeError: {str(error).partition('.')[0]}")
