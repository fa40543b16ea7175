"""Show that RandomContrast and RandomSaturation raise for images of bytes.

Expected:
They change bytes as the same numbers in floating point, as RandomSharpness does.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

images, wrong = np.full((2, 4, 4, 3), 100, "uint8"), []
for kind in (keras.layers.RandomContrast, keras.layers.RandomSaturation, keras.layers.RandomSharpness):
    try:
        kind(0.5)(images, training=True)
    except (ValueError, tf.errors.InvalidArgumentError):
        wrong.append(kind.__name__)
if wrong:
    sys.exit(f"these layers raise: {', '.join(wrong)}")
