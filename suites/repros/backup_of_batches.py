"""Show that BackupAndRestore with a number of batches trains batches again that the saved weights have seen.

Expected:
Training goes on with the first batch that the saved weights have not seen, so that the optimizer counts 4 steps.
"""

import contextlib
import sys
import tempfile

import keras
import numpy as np

x, folder = np.ones((4, 1)), tempfile.mkdtemp()
end = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: 1 // (1 - batch))
for last in (end, keras.callbacks.LambdaCallback()):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(folder, save_freq=2)
    with contextlib.suppress(ZeroDivisionError):
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[backup, last])
if model.optimizer.iterations.numpy() != 4:
    sys.exit(f"an epoch of 4 batches makes {model.optimizer.iterations.numpy()} updates if it is interrupted after 2")
