"""Show that RandomShear moves bounding boxes by another number of pixels than the image, if this is oblong.

Expected:
The box is around the object, up to one pixel.
"""

import sys

import keras
import numpy as np

images = np.zeros((1, 20, 80, 1), "float32")
images[0, 8:12, 30:50] = 1
given = {"images": images, "bounding_boxes": {"boxes": np.array([[[30.0, 8, 50, 12]]]), "labels": np.ones((1, 1))}}
layer = keras.layers.RandomShear((0.5, 0.5), 0.0, fill_mode="constant", seed=3, bounding_box_format="xyxy")
found = layer(given, training=True)
places, box = (
    np.nonzero(np.array(found["images"])[0, ..., 0] > 0.5)[1],
    np.array(found["bounding_boxes"]["boxes"])[0, 0],
)
if abs(box[0] - places.min()) > 2 or abs(box[2] - places.max()) > 2:
    sys.exit(f"the box is from {box[0]:.0f} to {box[2]:.0f}, and the object from {places.min()} to {places.max() + 1}")
