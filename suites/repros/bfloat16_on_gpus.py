"""Show that replicas on GPUs cannot add up gradients of bfloat16, which replicas on CPUs can.

Expected:
The sum of the replicas, as on CPUs: bfloat16 is the usual type of weights on GPUs, and NCCL has had it since 2.10.
"""

import sys

import tensorflow as tf

devices = tf.config.list_physical_devices("GPU")[:1]
if not devices:
    sys.exit(0)
tf.config.set_logical_device_configuration(devices[0], [tf.config.LogicalDeviceConfiguration(1024)] * 2)
strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])


@tf.function
def reduce():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2], tf.bfloat16)))


try:
    reduce()
except tf.errors.InternalError as error:
    sys.exit(next(line for line in str(error).splitlines() if "BFLOAT16" in line))
