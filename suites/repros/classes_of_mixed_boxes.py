"""Show that MixUp joins the boxes of two images for each image, but their classes along the axis of the batch.

Expected:
Each box has its class.
"""

import sys

import keras
import numpy as np

boxes = {"boxes": np.ones((3, 2, 4), "float32"), "labels": np.ones((3, 2), "float32")}
layer = keras.layers.MixUp(bounding_box_format="xyxy")
found = layer({"images": np.zeros((3, 8, 8, 3)), "bounding_boxes": boxes}, training=True)["bounding_boxes"]
shapes = tuple(found["boxes"].shape), tuple(found["labels"].shape)
if shapes[0][:2] != shapes[1]:
    sys.exit(f"the shape of the boxes is {shapes[0]}, and that of their classes {shapes[1]}")
