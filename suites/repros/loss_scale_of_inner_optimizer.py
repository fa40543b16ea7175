"""Show that LossScaleOptimizer applies the loss_scale_factor of the wrapped optimizer wrongly.

Expected:
scale_loss multiplies by what apply divides by, so that the step is that of SGD without scales.
"""

import sys

import keras
import tensorflow as tf

weight = keras.Variable(0.0)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0, loss_scale_factor=8.0), initial_scale=4.0)
optimizer.build([weight])
optimizer.apply([optimizer.scale_loss(tf.constant(1.0))], [weight])
if float(weight) != -1:
    sys.exit(f"a step with the gradient 1 and the rate 1 moves the weight by {float(weight)}, not by -1")
