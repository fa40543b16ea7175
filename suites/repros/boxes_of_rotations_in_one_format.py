"""Show that RandomRotation takes all bounding boxes for "xyxy", whatever the format that it is made with.

Expected:
A box in another format is turned as the same box in "xyxy" is.
"""

import sys

import keras
import numpy as np

boxes, found = {"xyxy": [[[2.0, 4.0, 8.0, 6.0]]], "yxyx": [[[4.0, 2.0, 6.0, 8.0]]]}, {}
for kind, box in boxes.items():
    given = {"images": np.zeros((1, 16, 16, 3)), "bounding_boxes": {"boxes": np.array(box), "labels": np.ones((1, 1))}}
    layer = keras.layers.RandomRotation((0.25, 0.25), bounding_box_format=kind)
    found[kind] = np.round(np.array(layer(given, training=True)["bounding_boxes"]["boxes"])[0, 0]).tolist()
left, top, right, bottom = found["xyxy"]
if found["yxyx"] != [top, left, bottom, right]:
    sys.exit(f"the box is {found['yxyx']} in place of {[top, left, bottom, right]}")
