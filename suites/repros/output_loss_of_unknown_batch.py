"""Show that fit weights the loss of an output wrongly in a step whose function was traced for batches of any size.

Expected:
The losses of the outputs add up to the loss. The size is read as the static ``shape[0]``, which is None here.
"""

import sys

import keras
import numpy as np

inputs = keras.Input((1,))
outputs = [keras.layers.Dense(1, kernel_initializer="zeros", name=name)(inputs) for name in "ab"]
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.0), ["mse", "mse"])
y = np.array([[0.0], [0.0], [0.0], [4.0], [4.0]])
logs = model.fit(np.ones((5, 1)), [y, y], batch_size=3, shuffle=False, verbose=0).history
found = [round(logs[name][0], 4) for name in ("loss", "a_loss", "b_loss")]
if found[0] != found[1] + found[2]:
    sys.exit(f"the loss is {found[0]}, and those of its outputs are {found[1]} and {found[2]}")
