"""Show that SimpleRNN ignores its regularizer of outputs.

Expected:
The layer has a penalty, as GRU and LSTM have.
"""

import sys

import keras
import numpy as np

layer = keras.layers.SimpleRNN(3, activity_regularizer="l2")
layer(np.ones((2, 5, 4)))
if not layer.losses:
    sys.exit("SimpleRNN has no penalty of its outputs")
