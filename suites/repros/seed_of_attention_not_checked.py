"""Show that MultiHeadAttention takes a word as its seed.

Expected:
A ValueError about the seed, as of Dropout.
"""

import sys

import keras

try:
    keras.layers.MultiHeadAttention(2, 2, seed="no_such")
except ValueError:
    sys.exit()
sys.exit("MultiHeadAttention has a word as its seed")
