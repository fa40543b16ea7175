"""Show that gaussian_blur takes what is documented for the height for the width, and mixes a kernel that is not square.

Expected:
A deviation of almost 0 along the height leaves each column of the image as it is, and a kernel of (1, 3) too.
"""

import sys

import keras
import numpy as np

image = np.zeros((5, 5, 1), "float32")
image[2, 2] = 1
for size, sigma in (((3, 3), (1e-3, 1.0)), ((1, 3), (1.0, 1.0))):
    found = np.asarray(keras.ops.image.gaussian_blur(image, size, sigma))[..., 0]
    if found[1].any() or not found[2, 1]:
        sys.exit(f"size {size}, sigma {sigma}: column {found[:, 2]}, row {found[2]}")
