"""Show that Discretization makes integers of its inputs in a tf.function, so that -0.5 is not below 0.

Expected:
The bin of -0.5 is 0, as it is eagerly.
"""

import sys

import keras
import tensorflow as tf

layer = keras.layers.Discretization(bin_boundaries=[0.0])
compiled = tf.function(lambda x: layer(x))
bins = [int(call(tf.constant([-0.5]))[0]) for call in (layer, compiled)]
if bins != [0, 0]:
    sys.exit(f"the bin of -0.5 with the boundary 0 is {bins[0]} eagerly, and {bins[1]} in a tf.function")
