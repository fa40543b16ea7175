"""Show that the progress bar counts steps for which there are no data, if an execution has several of them.

Expected:
The line begins with 5/5, for there are 5 batches. It does so without steps_per_execution, and for data of a known size.
"""

import contextlib
import io
import sys

import keras
import tensorflow as tf

data = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(5).batch(1).filter(lambda *_one: True)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=3, jit_compile=False)
with contextlib.redirect_stdout(io.StringIO()) as shown:
    model.fit(data, verbose=2)
if not shown.getvalue().startswith("5/5"):
    sys.exit(f"5 batches are shown as {shown.getvalue().split()[0]}")
