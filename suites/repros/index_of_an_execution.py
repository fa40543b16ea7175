"""Show that on_train_batch_end gets the first index of an execution of several steps.

Expected:
Two executions of four steps end at the indices 3 and 7.
"""

import sys

import keras
import numpy as np

found = []
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=4)
callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: found.append(batch))
model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=1, verbose=0, callbacks=[callback])
if found != [3, 7]:
    sys.exit(f"two executions of four steps end at {found}, not at [3, 7]")
