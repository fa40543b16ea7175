"""Show that HashedCrossing takes no shapes that are lists.

Expected:
A shape may be a list, as other layers take it. JSON has no tuples.
"""

import sys

import keras

layer = keras.layers.HashedCrossing(4)
try:
    layer.compute_output_shape([[3], [3]])
except ValueError as error:
    sys.exit(f"shapes that are lists are refused: {error}")
