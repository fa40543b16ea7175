"""Show that a validation of some steps takes other batches in each epoch.

Expected:
Each validation begins with the first batch, so that its loss is 1 with weights that stay as they are.
"""

import sys

import keras
import tensorflow as tf

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.0), "mse")
ones = tf.ones((2, 1))
batches = tf.data.Dataset.from_tensor_slices((ones, tf.constant([[1.0], [0.0]]))).batch(1)
history = model.fit(ones, ones, epochs=2, validation_data=batches, validation_steps=1, verbose=0).history
if history["val_loss"] != [1, 1]:
    sys.exit(f"validation_steps=1 of batches with the losses 1 and 0: {history['val_loss']}")
