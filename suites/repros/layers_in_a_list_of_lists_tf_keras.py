"""Show that a file of tf_keras leaves out the layers that another layer keeps in a list of lists.

Expected:
The model that is read has the weights of the one that was saved, or saving raises an error.
"""

import sys
import tempfile

import tf_keras


class Own(tf_keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.parts = [[tf_keras.layers.Dense(1)]]

    def call(self, inputs):
        return self.parts[0][0](inputs)


models = [tf_keras.Sequential([tf_keras.Input((2,)), Own()]) for _ in range(2)]
path = f"{tempfile.mkdtemp()}/a.weights.h5"
models[0].save_weights(path)
models[1].load_weights(path)
if (models[0].get_weights()[0] != models[1].get_weights()[0]).any():
    sys.exit("the weights that are read are not those that were saved")
