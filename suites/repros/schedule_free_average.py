"""Show that ScheduleFreeAdamW averages with the point after the step in place of the point before it.

Two steps go from weight 0 with the gradients 1 and 1, the rate 1 and beta_1 = 0.5. Each step moves the point z by -1.
The average x of the points is -1 and then -1.5, and the weight is half of z and half of x.

Expected:
The weight is (-2 - 1.5) / 2 = -1.75. The optimizer keeps a reference to the variable z, which it has changed when it
computes x before the step from it.
"""

import sys

import keras
import tensorflow as tf

weight = keras.Variable(0.0)
optimizer = keras.optimizers.ScheduleFreeAdamW(1.0, beta_1=0.5, epsilon=0.0, warmup_steps=0)
optimizer.build([weight])
for _ in range(2):
    optimizer.apply([tf.constant(1.0)])
if abs(float(weight) + 1.75) > 1e-5:
    sys.exit(f"the weight after two steps is {float(weight)}, not -1.75")
