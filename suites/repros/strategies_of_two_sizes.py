"""Show that two MirroredStrategies of different sizes cannot both reduce in one process.

Expected:
Both strategies reduce, each over its own replicas.
"""

import sys

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)


def total(size):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(size)])
    reduce = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([]))  # noqa: E731
    step = tf.function(lambda: strategy.run(reduce), autograph=False)
    return strategy.experimental_local_results(step())[0].numpy()


try:
    sums = [total(2), total(3)]
except tf.errors.InternalError as error:
    sys.exit(f"InternalError: {error.message[:150]}".replace("\n", " "))
