"""Show that fit calls on_epoch_end of a PyDataset before the first epoch.

Expected:
The documentation calls it a method that is called at the end of every epoch, so there is one call for one epoch.
"""

import sys

import keras
import numpy as np

called = []
one = np.ones((1, 1))
hooks = {"on_epoch_begin": lambda self: called.append("begin"), "on_epoch_end": lambda self: called.append("end")}
parts = {"__len__": lambda self: 2, "__getitem__": lambda self, index: (one, one)}
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(type("Batches", (keras.utils.PyDataset,), {**hooks, **parts})(), verbose=0)
if called != ["begin", "end"]:
    sys.exit(f"one epoch calls {', '.join(called)}")
