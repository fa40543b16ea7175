"""Show that fit takes no array of sample weights if the outputs are a list, and the labels a dictionary.

Expected:
The weights count for each output, as in train_on_batch.
"""

import sys

import keras
import numpy as np

x, inputs = np.ones((4, 3)), keras.Input((3,))
model = keras.Model(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "ab"])
model.compile("sgd", loss={"a": "mse", "b": "mse"})
labels = {"a": np.ones((4, 1)), "b": np.ones((4, 1))}
try:
    model.fit(x, labels, sample_weight=np.ones(4), verbose=0)
except KeyError as error:
    sys.exit(f"KeyError: {error}")
