"""Show that an argument of a tf.function cannot be reduced under MultiWorkerMirroredStrategy.

Expected:
The argument is reduced. It has no device, so that the device of the replica could be the destination.
"""

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
value = strategy.experimental_distribute_values_from_function(lambda context: tf.constant(1.0))


@tf.function
def step(given):
    return strategy.run(lambda own: tf.distribute.get_replica_context().all_reduce("SUM", own), args=(given,))


try:
    step(value)
except ValueError as error:
    raise SystemExit(str(error).splitlines()[-1].strip()) from None
