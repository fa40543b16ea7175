"""Show that TensorBoard writes no numbers of an epoch whose last batch it does not write, as update_freq says.

Expected:
update_freq is about batches. Each epoch has its loss in the file.
"""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tensorflow.summary as summary

summary.scalar = lambda name, value, step: tf.summary.write(name, value, step)  # does not need the package tensorboard
model, folder, x = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), tempfile.mkdtemp(), np.ones((3, 1))
model.compile("sgd", "mse")
events = keras.callbacks.TensorBoard(folder, write_graph=False, update_freq=2)
model.fit(x, x, batch_size=1, epochs=2, verbose=0, callbacks=[events])
written = [file.read_bytes().count(b"epoch_loss") for file in Path(folder).rglob("*tfevents*")]
if sum(written) != 2:
    sys.exit(f"{sum(written)} of 2 epochs have their loss in the file")
