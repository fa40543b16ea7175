"""Show that Nadam of tf_keras in a tf.function multiplies its product of momentums once for each variable.

Expected:
A step in a tf.function gives what a step without it gives, for any number of variables.
"""

import sys

import tensorflow as tf
import tf_keras as keras

found = []
for wrap in (lambda step: step, tf.function):
    weights = [tf.Variable(1.0), tf.Variable(1.0)]
    optimizer = keras.optimizers.Nadam(0.5, beta_1=0.5)
    optimizer.build(weights)
    step = wrap(lambda weights=weights, optimizer=optimizer: optimizer.apply_gradients([(3.0 * w, w) for w in weights]))
    for _ in range(3):
        step()
    found.append([round(float(weight), 3) for weight in weights])
if found[0] != found[1]:
    sys.exit(f"three steps make the weights {found[1]} in a tf.function, and {found[0]} without it")
