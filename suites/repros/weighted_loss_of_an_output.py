"""Show that the logged loss of an output is its loss times its weight.

Expected:
The loss of each output is logged as it is, and the total has the weights.
"""

import sys

import keras
import numpy as np

inputs = keras.Input((1,))
outputs = {name: keras.layers.Dense(1, kernel_initializer="zeros", name=name)(inputs) for name in ("a", "b")}
model = keras.Model(inputs, outputs)
model.compile("sgd", {"a": "mse", "b": "mse"}, loss_weights={"a": 4.0, "b": 1.0})
logs = model.evaluate(np.ones((2, 1)), {"a": np.ones((2, 1)), "b": np.ones((2, 1))}, verbose=0, return_dict=True)
if logs["a_loss"] != 1:
    sys.exit(f"the loss of output a is 1, and is logged as {logs['a_loss']}")
