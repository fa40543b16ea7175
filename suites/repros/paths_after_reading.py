"""Show that the variables of a model have other paths after it was read from its configuration.

Expected:
The paths are equal, so that rules by path still hold.
"""

import sys

import keras

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="one")], name="model")
read = keras.Sequential.from_config(model.get_config())
if read.weights[0].path != model.weights[0].path:
    sys.exit(f"the path is {read.weights[0].path} in place of {model.weights[0].path}")
