"""Show that RandomBrightness adds to images of bytes as bytes, so that what is too bright becomes dark.

Expected:
Bytes are changed as the same numbers in floating point are, up to rounding.
"""

import sys

import keras
import numpy as np

image = np.full((1, 4, 4, 3), 250, "uint8")
found, wanted = (
    np.max(keras.layers.RandomBrightness((0.5, 0.5))(one, training=True)) for one in (image, image.astype("float32"))
)
if abs(float(found) - float(wanted)) > 1:
    sys.exit(f"the brightest pixel is {found} in place of {wanted}")
