"""Show that ops.stop_gradient takes no KerasTensor.

Expected:
The result is a KerasTensor of the shape (3, 4), so that a model can stop gradients between its layers.
"""

import sys

import keras

try:
    keras.ops.stop_gradient(keras.KerasTensor((3, 4)))
except ValueError as error:
    sys.exit(f"ValueError: {error}")
