"""Show that MultiHeadAttention tells a shape of its scores in which there are as many sources as targets.

Expected:
The shape of the scores is (1, 2, 3, 5), as that of a call with arrays: 3 targets attend to 5 sources.
"""

import sys

import keras

layer = keras.layers.MultiHeadAttention(2, 4)
query, value = keras.KerasTensor((1, 3, 4)), keras.KerasTensor((1, 5, 4))
_, scores = layer(query, value, return_attention_scores=True)
if tuple(scores.shape) != (1, 2, 3, 5):
    sys.exit(f"the shape of the scores is {tuple(scores.shape)}")
