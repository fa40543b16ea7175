"""Show that a model whose outputs are a tuple returns a list when it is read from its file.

Expected:
The model that is read returns a tuple, as the model that was saved.
"""

import sys
import tempfile

import keras
import numpy as np

inputs = keras.Input((1,))
model = keras.Model(inputs, (keras.layers.ReLU()(inputs), keras.layers.ELU()(inputs)))
with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/model.keras")
    read = keras.saving.load_model(f"{folder}/model.keras")
before, after = (type(one(np.ones((1, 1)))).__name__ for one in (model, read))
if before != after:
    sys.exit(f"the outputs of the model are a {before}, and those of the model that is read are a {after}")
