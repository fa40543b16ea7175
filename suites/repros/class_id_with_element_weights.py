"""Show that Recall with a class_id refuses weights of the shape of the labels, which its documentation describes.

Expected:
The weights of the class are used: the recall is 1.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

metric, labels = keras.metrics.Recall(class_id=1), np.array([[0.0, 1.0], [1.0, 0.0]])
try:
    metric.update_state(labels, labels, sample_weight=np.array([[1.0, 2.0], [3.0, 4.0]]))
except (ValueError, tf.errors.InvalidArgumentError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
