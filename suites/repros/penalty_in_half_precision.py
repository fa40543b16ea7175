"""Show that a model in mixed precision cannot be trained with a regularizer of outputs.

Expected:
It is trained, as it is with a regularizer of weights.
"""

import sys

import keras

keras.config.set_dtype_policy("mixed_float16")
model = keras.Sequential([keras.layers.Dense(1, activity_regularizer="l2")])
model.compile("sgd", "mse")
try:
    model.fit(keras.ops.ones((4, 2)), keras.ops.ones((4, 1)), verbose=0)
except TypeError as error:
    sys.exit(f"{str(error)[:90]} ...")
