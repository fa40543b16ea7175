"""Show that a StringLookup that is read from a file forgets a last word that is empty.

Expected:
The layer that is read gives the word the same number.
"""

import sys
from tempfile import TemporaryDirectory

import keras
import tensorflow as tf

layer = keras.layers.StringLookup()
layer.adapt(tf.constant(["a", "a", ""]))
with TemporaryDirectory() as folder:
    keras.Sequential([keras.Input((1,), dtype="string"), layer]).save(f"{folder}/model.keras")
    again = keras.saving.load_model(f"{folder}/model.keras").layers[-1]
found, wanted = int(again(tf.constant(""))), int(layer(tf.constant("")))
if found != wanted:
    sys.exit(f"the number of the empty word is {found} in place of {wanted}")
