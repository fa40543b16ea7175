"""Show that six layers do not change images of a size that a function does not know.

Expected:
All layers change the images, as RandomFlip does.
"""

import sys

import keras
import tensorflow as tf

layers = keras.layers
some = [layers.RandomCrop(4, 4), layers.RandomPerspective(), layers.RandomElasticTransform(), layers.RandomErasing()]
some += [layers.CutMix(), layers.UpSampling2D(interpolation="bilinear"), layers.RandomFlip()]
wrong = []
for layer in some:
    try:
        step = tf.function(lambda x, layer=layer: layer(x, training=True), [tf.TensorSpec((None, None, None, 3))])
        step(tf.ones((2, 8, 8, 3)))
    except (TypeError, tf.errors.OperatorNotAllowedInGraphError):
        wrong.append(layer.name)
if wrong:
    sys.exit(f"these layers raise: {', '.join(wrong)}")
