"""Show that ModelCheckpoint does not know that a higher value of a metric is better.

Expected:
It writes a file after each epoch, because the accuracy rises.
"""

import os
import sys
import tempfile

import keras
import numpy as np

folder = tempfile.mkdtemp()
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[keras.metrics.BinaryAccuracy(name="right", threshold=0.1)])
saving = keras.callbacks.ModelCheckpoint(folder + "/{epoch}.keras", "right", save_best_only=True)
model.fit(
    np.array([[0.2], [1.0]]), np.ones((2, 1)), batch_size=1, epochs=12, shuffle=False, verbose=0, callbacks=[saving]
)
if len(os.listdir(folder)) == 1:
    sys.exit("the only file is that of the first epoch, which has the lowest accuracy")
