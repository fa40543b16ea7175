"""Show that EarlyStopping compares a second training with the best number of the first one.

Expected:
The second training has 3 epochs, because its number falls in each of them.
"""

import sys

import keras
import numpy as np

stopping = keras.callbacks.EarlyStopping("loss", patience=1)
for start in (1.0, 9.0):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[start]])])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(np.ones((4, 1)), np.zeros((4, 1)), epochs=3, verbose=0, callbacks=[stopping])
if len(history.epoch) != 3:
    sys.exit(f"the second training has {len(history.epoch)} epochs in place of 3")
