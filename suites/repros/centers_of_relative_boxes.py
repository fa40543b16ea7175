"""Show that convert_format takes the width for the height of boxes whose center is relative to the image.

Expected:
A box in the middle of an oblong image is there in each format.
"""

import sys

import keras
import numpy as np

box = np.array([[0.5, 0.5, 0.5, 0.5]], "float32")
found = np.array(keras.utils.bounding_boxes.convert_format(box, "rel_center_xywh", "xyxy", height=100, width=200))
if found[0].tolist() != [50, 25, 150, 75]:
    sys.exit(f"the box is {found[0].tolist()} in place of [50, 25, 150, 75]")
