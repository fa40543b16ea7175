"""Show that BackupAndRestore trains an epoch twice if the program ends after it has written the weights.

Expected:
Weights and epoch are saved together, so that two epochs of two batches make 4 updates wherever the program ends.
"""

import contextlib
import sys
import tempfile

import keras
import numpy as np

x, folder = np.ones((2, 1)), tempfile.mkdtemp()
for ends in (True, False):
    (model := keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])).compile("sgd", "mse")
    save = model.save_weights  # returns None, so that the division raises as soon as the weights are written
    if ends:
        model.save_weights = lambda *given, save=save, **options: 1 // bool(save(*given, **options))
    with contextlib.suppress(ZeroDivisionError):
        model.fit(x, x, 1, epochs=2, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(folder)])
if model.optimizer.iterations.numpy() != 4:
    sys.exit(f"two epochs of 2 batches make {model.optimizer.iterations.numpy()} updates if the first backup is cut")
