"""Show that a ParameterServerStrategy forgets the cluster resolver that it is given.

Expected:
The resolver that the strategy was made with, as MultiWorkerMirroredStrategy has it.
"""

import sys

import tensorflow as tf

cluster = tf.train.ClusterSpec({"worker": ["localhost:21762"], "ps": ["localhost:21763"]})
servers = [tf.distribute.Server(cluster, job_name=name, task_index=0, protocol="grpc") for name in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
if strategy.cluster_resolver is not resolver:
    sys.exit(f"strategy.cluster_resolver is {strategy.cluster_resolver}")
