"""Show that Model.distribute_reduction_method cannot be read, also on one device.

Expected:
The attribute can be read and set, as its documentation in compile() says, or it goes.
"""

import sys

import keras

model = keras.Sequential([keras.layers.Dense(1)])
try:
    assert model.distribute_reduction_method == "auto"
except AttributeError as error:
    sys.exit(f"{type(error).__name__}: {error}")
