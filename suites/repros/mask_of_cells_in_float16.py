"""Show that an RNN with several cells takes no mask in float16 or bfloat16, because its first states are float32.

Expected:
The second time is masked, so that the output is that of the first one.
"""

import sys

import keras
import tensorflow as tf

cells = [keras.layers.GRUCell(2, dtype="mixed_float16") for _ in range(2)]
try:
    keras.layers.RNN(cells, dtype="mixed_float16")(tf.ones((1, 2, 1)), mask=tf.constant([[True, False]]))
except tf.errors.InvalidArgumentError as error:
    sys.exit(f"InvalidArgumentError: {next(line for line in str(error).splitlines() if 'SelectV2' in line)}")
