"""Show that a batch of a dataset cannot be gathered in a tf.function by workers.

Expected:
ReplicaContext.all_gather of a batch returns the batches of all replicas. It does if the batch is multiplied by 1.
"""

import sys

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4)))
gather = tf.function(lambda batch: tf.distribute.get_replica_context().all_gather(batch, axis=0))
try:
    tf.function(lambda: strategy.run(gather, args=(next(iterator),)))()
except ValueError as error:
    sys.exit(str(error).strip().splitlines()[-1].strip())
