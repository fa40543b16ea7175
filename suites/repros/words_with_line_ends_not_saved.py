"""Show that a StringLookup that is read from a file splits words that have the end of a line in them.

Expected:
The layer that is read gives each word the same number.
"""

import sys
from tempfile import TemporaryDirectory

import keras
import tensorflow as tf

layer, words = keras.layers.StringLookup(), tf.constant(["a", "b\u2028c", "d"])
layer.adapt(tf.constant(["a", "a", "a", "b\u2028c", "b\u2028c", "d"]))
with TemporaryDirectory() as folder:
    keras.Sequential([keras.Input((1,), dtype="string"), layer]).save(f"{folder}/model.keras")
    again = keras.saving.load_model(f"{folder}/model.keras").layers[-1]
found, wanted = again(words).numpy().tolist(), layer(words).numpy().tolist()
if found != wanted:
    sys.exit(f"the numbers of the words are {found} in place of {wanted}")
