"""Show that sparse_categorical_crossentropy refuses the lists of its own documentation, and its metric too.

Expected:
The loss is that of arrays, as for all other losses.
"""

import sys

import keras

labels, predicted = [1, 2], [[0.05, 0.95, 0.0], [0.1, 0.8, 0.1]]
try:
    print(keras.losses.sparse_categorical_crossentropy(labels, predicted))
except AttributeError as error:
    sys.exit(f"AttributeError: {error}")
