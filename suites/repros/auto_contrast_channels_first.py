"""Show that AutoContrast takes the channels for an axis of the image if they come first.

Expected:
The image is changed as with the channels last.
"""

import sys

import keras
import numpy as np

image = np.random.default_rng(3).uniform(0.25, 0.75, (1, 3, 8, 6)).astype("float32")
found = keras.layers.AutoContrast((0, 1), data_format="channels_first")(image)
wanted = np.moveaxis(np.asarray(keras.layers.AutoContrast((0, 1))(np.moveaxis(image, 1, -1))), -1, 1)
error = np.abs(found - wanted).max()
if error > 1e-4:
    sys.exit(f"pixels differ by up to {error:.2f}")
