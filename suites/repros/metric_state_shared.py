"""Show that the replicas of central storage share the state of a Keras metric, and sum it over them again.

Expected:
The metric is 6. Under CentralStorageStrategy, the replicas share one variable, so that its update must not be summed
over the replicas again.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
with strategy.scope():
    metric = keras.metrics.Sum()
for _ in range(3):
    strategy.run(metric.update_state, args=(tf.constant([1.0]),))
if float(metric.result()) != 6:
    sys.exit(f"the sum of three updates with 1 on two replicas is {float(metric.result())}, and not 6")
