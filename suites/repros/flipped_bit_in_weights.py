"""Show that load_weights loads a file in which one bit has changed.

Expected:
load_weights raises an error that names the file. HDF5 can write checksums (fletcher32), and save_weights does not ask
for them.
"""

import pathlib
import sys
import tempfile

import keras

file = pathlib.Path(tempfile.mkdtemp(), "model.weights.h5")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.save_weights(file)
data, weights = bytearray(file.read_bytes()), model.get_weights()[0]
data[data.index(weights.tobytes()) + 3] ^= 0x80
file.write_bytes(data)
model.load_weights(file)
sys.exit(f"the saved weight was {weights[0, 0]:.3f}, and {model.get_weights()[0][0, 0]:.3f} was loaded")
