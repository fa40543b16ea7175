"""Show that a list of a layer does not track the layer that replaces one of its layers.

Expected:
The layer has the variables of the new layer, as after append().
"""

import sys

import keras

layer, new = keras.layers.Layer(), keras.layers.Dense(1)
new.build((1, 1))
layer.parts = [keras.layers.Dense(1)]
layer.parts[0] = new
if any(one is new.kernel for one in layer.variables):
    sys.exit()
sys.exit("the kernel of the new layer is no variable of the layer: it is neither trained nor saved")
