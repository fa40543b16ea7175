"""Show that a model of a user cannot be called if its layer Normalization was given numbers.

Expected:
The model can be called.
"""

import sys

import keras
import numpy as np


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.of_user = keras.layers.Normalization(mean=0.5, variance=4.0)

    def call(self, inputs):
        return self.of_user(inputs)


try:
    Model()(np.ones((4, 5, 3), "float32"))
except TypeError as error:
    sys.exit(type(error).__name__)
