"""Show that on_train_batch_end gets an index after the last batch if an execution has fewer steps.

Expected:
The indices of the ends of five batches in executions of three are 2 and 4, as in tf_keras.
"""

import sys

import keras
import numpy as np

indices = []
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=3)
seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: indices.append(batch))
model.fit(np.ones((5, 1)), np.ones((5, 1)), batch_size=1, verbose=0, callbacks=[seen])
if indices != [2, 4]:
    sys.exit(f"five batches in executions of three steps end at the indices 2 and 4, and the callback gets {indices}")
