"""Show that metrics of overlaps raise if the classes are not on the last axis.

Expected:
The overlap of equal labels and predictions is 1. axis is the axis of the classes in labels and predictions, but the
result, which has only one axis, is summed over it too.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

metric = keras.metrics.MeanIoU(num_classes=2, sparse_y_true=False, sparse_y_pred=False, axis=1)
classes = np.array([[[1.0, 0.0], [0.0, 1.0]]])
metric.update_state(classes, classes)
try:
    metric.result()
except (tf.errors.InvalidArgumentError, ValueError) as error:
    sys.exit(str(error).partition("}} ")[2].partition(" [Op")[0] or str(error))
