"""Show that MultiHeadAttention applies the masks of the rows to the heads, if the attention mask has an axis for heads.

Expected:
An attention mask that is true everywhere changes nothing. With other numbers of rows than of heads, the call raises.
"""

import sys

import keras
import numpy as np

x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype("float32")
layer, padding = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4), np.array([[True] * 3, [True, False, False]])
without = np.asarray(layer(x, x, value_mask=padding))
found = np.asarray(layer(x, x, value_mask=padding, attention_mask=np.ones((2, 2, 3, 3), bool)))
if not np.allclose(found, without, atol=1e-6):
    sys.exit(f"an attention mask that is true everywhere changes the output by {np.abs(found - without).max():.2f}")
