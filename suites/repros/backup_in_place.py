"""Show that BackupAndRestore overwrites its only backup in place, so that a program that ends meanwhile has none.

Expected:
The new weights are written to another file, which then replaces the old one.
"""

import os
import sys
import tempfile

import keras
import numpy as np

x, folder = np.ones((2, 1)), tempfile.mkdtemp()
old, file = (os.path.join(folder, name) for name in ("old", "latest.weights.h5"))
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
link = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: os.link(file, old) if epoch == 1 else None)
model.fit(x, x, epochs=2, verbose=0, callbacks=[backup, link])
if os.path.samefile(old, file):
    sys.exit("the second backup was written into the file of the first one")
