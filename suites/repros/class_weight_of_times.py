"""Show that class_weight takes no labels in an array with an axis for times.

Expected:
As documented, labels of any rank have their weights if their last axis has the size 1. A dataset with them works.
"""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((2, 1)), keras.layers.Dense(3)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
try:
    model.fit(np.zeros((4, 2, 1)), np.zeros((4, 2, 1)), class_weight={0: 1.0, 1: 2.0, 2: 3.0}, verbose=0)
except TypeError as error:
    sys.exit(f"fit with class_weight and labels of rank 3 raises {type(error).__name__}: {error}")
