"""Show that Softmax refuses an axis that the input does not have only when it has numbers.

Expected:
The layer refuses it when the model is made, as keras.ops.softmax does with a symbol.
"""

import sys

import keras

keras.layers.Softmax(axis=4)(keras.KerasTensor((3, 5, 4)))
sys.exit("no error for axis 4 of an input of three axes")
