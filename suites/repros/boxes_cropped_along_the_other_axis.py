"""Show that RandomCrop moves bounding boxes along the width by what it cuts off the height.

Expected:
The box is around the object.
"""

import sys

import keras
import numpy as np

images = np.zeros((1, 20, 40, 1), "float32")
images[0, 8:12, 15:25] = 1
for seed in range(4):
    given = {"images": images, "bounding_boxes": {"boxes": np.array([[[15.0, 8, 25, 12]]]), "labels": np.ones((1, 1))}}
    found = keras.layers.RandomCrop(19, 30, seed=seed, bounding_box_format="xyxy")(given, training=True)
    left = np.nonzero(np.array(found["images"])[0, ..., 0])[1].min()
    box = np.array(found["bounding_boxes"]["boxes"])[0, 0]
    if box[0] != left:
        sys.exit(f"the box begins at column {box[0]:.0f}, and the object at {left}")
