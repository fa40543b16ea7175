"""Show that ops.image.resize cannot pad images of bytes.

Expected:
The image is padded with the value, as an image of float32 is.
"""

import sys

import keras
import numpy as np

image = np.zeros((5, 7, 3), "uint8")
try:
    keras.ops.image.resize(image, (7, 7), pad_to_aspect_ratio=True)
except TypeError as error:
    sys.exit(f"TypeError: {str(error).splitlines()[0]}")
