"""Show that MultiHeadAttention of tf_keras attends over another axis if the axis is counted from the back.

Expected:
The axes 1 and -3 of four are the same one, so that both layers give the same numbers.
"""

import sys

import numpy as np
import tf_keras

x, found = np.random.default_rng(0).normal(size=(2, 3, 4, 5)), []
for axis in (1, -3):
    tf_keras.utils.set_random_seed(1)
    layer = tf_keras.layers.MultiHeadAttention(1, 2, attention_axes=(axis,))
    found.append(layer(x, x).numpy())
if not np.allclose(*found, atol=1e-5):
    sys.exit(f"the outputs differ by up to {np.abs(found[0] - found[1]).max():.1f}")
