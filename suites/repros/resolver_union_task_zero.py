"""Show that UnionResolver ignores task_id=0.

Expected:
task_id is 0, as it was given. The code uses `task_id or ...`, for which 0 is no number.
"""

import sys

import tensorflow as tf

resolvers = tf.distribute.cluster_resolver
cluster = tf.train.ClusterSpec({"worker": ["a:1", "b:2"]})
first = resolvers.SimpleClusterResolver(cluster, task_type="worker", task_id=1)
task = resolvers.UnionResolver(first, task_id=0).task_id
if task != 0:
    sys.exit(f"UnionResolver(..., task_id=0) has task_id {task}")
