"""Show that RandomCrop stretches an image that is smaller than the crop.

Expected:
The largest part with the aspect ratio of the crop is resized, as documented, and as CenterCrop does it.
"""

import sys

import keras
import numpy as np

images = np.tile(np.arange(8, dtype="float32").reshape(1, 1, 8, 1), (1, 4, 1, 1))
found, wanted = (
    np.round(np.array(layer(images, training=True))[0, 0, :, 0], 1).tolist()
    for layer in (keras.layers.RandomCrop(8, 8), keras.layers.CenterCrop(8, 8))
)
if found != wanted:
    sys.exit(f"the columns 0 to 7 become {found} in place of {wanted}")
