"""Show that categorical_generalized_cross_entropy refuses lists.

Expected:
The loss is that of arrays, as for other losses.
"""

import sys

import keras

try:
    print(keras.losses.categorical_generalized_cross_entropy([0, 1], [[0.75, 0.25], [0.25, 0.75]], q=0.5))
except AttributeError as error:
    sys.exit(f"AttributeError: {error}")
