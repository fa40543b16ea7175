"""Show that each update of a metric starts from the sum over the replicas, which is then summed again.

Expected:
Two replicas that add 1 twice have the sum 4.
"""

import sys

import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    metric = keras.metrics.Sum()
for _ in range(2):
    strategy.run(lambda: metric.update_state(tf.ones(())))
if float(metric.result()) != 4:
    sys.exit(f"two replicas add 1 twice, and the sum is {float(metric.result())}")
