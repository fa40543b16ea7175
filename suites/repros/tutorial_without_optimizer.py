"""Show that the checkpoint of TensorFlow's tutorial on custom loops with several workers has no state of the optimizer.

Expected:
The tutorial (https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl) saves its RMSprop optimizer too.
"""

import sys
import tempfile

import tensorflow as tf

model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
optimizer.build(model.trainable_variables)
epoch, step_in_epoch = tf.Variable(0), tf.Variable(0)
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
names = [name for name, _shape in tf.train.list_variables(checkpoint.save(tempfile.mkdtemp() + "/ckpt"))]
if not any("optimizer" in name for name in names):
    sys.exit("the checkpoint of the tutorial has no variable of its optimizer, which has 4")
