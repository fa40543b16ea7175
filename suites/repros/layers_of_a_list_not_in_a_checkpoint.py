"""Show that a tf.train.Checkpoint leaves out the layers that a model of Keras 3 keeps in a list.

Expected:
The checkpoint has the weights of all layers of the model, as with tf_keras.
"""

import sys
import tempfile

import keras
import tensorflow as tf


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1)]


model = Own()
model.parts[0].build((None, 2))
path = tf.train.Checkpoint(model=model).save(f"{tempfile.mkdtemp()}/checkpoint")
if not [name for name, _ in tf.train.list_variables(path) if "kernel" in name]:
    sys.exit(f"the checkpoint has none of the {len(model.weights)} weights of the model")
