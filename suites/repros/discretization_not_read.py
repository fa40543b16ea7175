"""Show that Discretization with a number of bins cannot be read from its configuration.

Expected:
It is read.
"""

import sys

import keras

layer = keras.layers.Discretization(num_bins=3)
try:
    keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
except (TypeError, ValueError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
