"""Show that a batch of 4 is split over 3 replicas as 2, 2, 0, although sizes should differ by one at most.

Expected:
The replicas get 2, 1 and 1 examples. A replica without examples needs a special case in every step, which 4 examples
for 3 replicas do not ask for.
"""

import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
sizes = [len(part) for part in strategy.experimental_local_results(next(iter(dataset)))]
if max(sizes) - min(sizes) > 1:
    sys.exit(f"3 replicas get {sizes} of a batch of 4")
