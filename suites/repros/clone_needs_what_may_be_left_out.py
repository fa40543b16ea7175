"""Show that a clone of a model needs an input that the model does not need.

Expected:
The input of the clone is optional and sparse, as that of the model.
"""

import sys

import keras

inputs = keras.Input((3,), optional=True), keras.Input((3,), sparse=True)
model = keras.Model(inputs, [keras.layers.Identity()(one) for one in inputs])
optional, sparse = keras.models.clone_model(model).layers[:2]
lost = [name for name, one in (("optional", optional), ("sparse", sparse)) if not getattr(one, name)]
if lost:
    sys.exit(f"the clone has lost {' and '.join(lost)}")
