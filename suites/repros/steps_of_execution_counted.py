"""Show that an execution of several steps counts a step for which no data is left.

Expected:
The optimizer has made 4 steps, one for each batch, also if an execution has 3 of them.
"""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=3, jit_compile=False)
model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=1, verbose=0)
if (steps := int(model.optimizer.iterations.numpy())) != 4:
    sys.exit(f"4 batches are trained, and the optimizer counts {steps} steps")
