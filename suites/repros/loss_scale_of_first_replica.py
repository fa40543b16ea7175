"""Show that LossScaleOptimizer looks for infinite gradients on the first replica only.

Expected:
No replica changes the weight, and the loss scale is halved. Each replica could decide by the reduced gradients.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([weight])
replica = lambda: tf.distribute.get_replica_context().replica_id_in_sync_group  # noqa: E731
strategy.run(lambda: optimizer.apply_gradients([(-tf.math.log(1.0 - float(replica())), weight)]))
found = strategy.experimental_local_results(weight.value)[0].numpy()
if found != 0:
    sys.exit(f"one replica has an infinite gradient, and the weight is {found}")
