"""Show that UnitNormalization and a normalized Dot return 0 for inputs of float16 whose squares are too large.

Expected:
The parts of the unit vector are 0.5, and the cosine of a vector and itself is 1.
"""

import sys

import keras
import tensorflow as tf

x = tf.fill((1, 4), 256.0)
unit = keras.layers.UnitNormalization(dtype="mixed_float16")(x)
cosine = keras.layers.Dot(-1, normalize=True, dtype="mixed_float16")([x, x])
if float(unit[0, 0]) != 0.5 or float(cosine[0, 0]) != 1:
    sys.exit(f"a part of the unit vector is {float(unit[0, 0])}, and the cosine {float(cosine[0, 0])}")
