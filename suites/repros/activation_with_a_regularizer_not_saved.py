"""Show that ELU and Identity with a regularizer of outputs have no configuration.

Expected:
They have one, as every layer that takes this parameter.
"""

import sys

import keras

layer = keras.layers.ELU(activity_regularizer="l2")
regularized = keras.layers.ELU(activity_regularizer=keras.regularizers.L2(0.25))
try:
    print(layer.get_config(), regularized.get_config())
except NotImplementedError as error:
    sys.exit(" ".join(str(error).split()[:12]))
