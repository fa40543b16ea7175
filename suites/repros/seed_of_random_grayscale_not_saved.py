"""Show that the configuration of RandomGrayscale lacks its seed, so that a copy changes other images.

Expected:
The configuration has the seed, as those of the other random layers do.
"""

import sys

import keras

layer = keras.layers.RandomGrayscale(factor=0.5, seed=3)
copy = keras.layers.RandomGrayscale.from_config(layer.get_config())
if copy.seed != layer.seed:
    sys.exit(f"the copy has the seed {copy.seed}, and not {layer.seed}")
