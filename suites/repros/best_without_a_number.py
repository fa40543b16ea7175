"""Show that ModelCheckpoint with save_best_only saves after each epoch that has no validation.

Expected:
An epoch without a validation has no number that could be the best one, and saves nothing.
"""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

folder = Path(tempfile.mkdtemp())
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callback = keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras", "val_loss", save_best_only=True)
data = (np.ones((4, 1)), np.ones((4, 1)))
model.fit(*data, validation_data=data, validation_freq=3, epochs=3, verbose=0, callbacks=[callback])
found = sorted(file.stem for file in folder.iterdir())
if found != ["3"]:
    sys.exit(f"it saves after the epochs {', '.join(found)}, although only epoch 3 has a validation")
