"""Show that RandomPerspective returns bounding boxes as "xyxy", whatever the format that it is made with.

Expected:
An image that is not changed has the boxes that were given.
"""

import sys

import keras
import numpy as np

boxes = np.array([[[2.0, 4.0, 6.0, 2.0]]], "float32")
given = {"images": np.zeros((1, 16, 16, 3)), "bounding_boxes": {"boxes": boxes, "labels": np.ones((1, 1))}}
layer = keras.layers.RandomPerspective(factor=0.0, bounding_box_format="xywh")
found = np.array(layer(given, training=True)["bounding_boxes"]["boxes"])
if not np.allclose(found, boxes):
    sys.exit(f"the box is {found[0, 0].tolist()} in place of {boxes[0, 0].tolist()}")
