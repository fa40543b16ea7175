"""Show that load_model of tf_keras does not say which .keras file is incomplete.

Expected:
The error names the file.
"""

import pathlib
import sys
import tempfile

import tf_keras

file = pathlib.Path(tempfile.mkdtemp(), "model.keras")
tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(1)]).save(file)
file.write_bytes(file.read_bytes()[:999])
try:
    tf_keras.models.load_model(file)
except OSError as error:
    if file.name not in str(error):
        sys.exit(str(error))
