"""Show that load_weights does not say which file is incomplete.

Expected:
The error names the file.
"""

import pathlib
import sys
import tempfile

import keras

file = pathlib.Path(tempfile.mkdtemp(), "model.weights.h5")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.save_weights(file)
file.write_bytes(file.read_bytes()[:999])
try:
    model.load_weights(file)
except OSError as error:
    if file.name not in str(error):
        sys.exit(str(error))
