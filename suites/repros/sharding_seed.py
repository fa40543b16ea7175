"""Show that an initializer with a seed gives two shards the same rows.

Expected:
The rows of two shards differ, as those of two halves of one variable do. The seed could be folded with the offset of
the shard.
"""

import sys

import tensorflow as tf

initializer = tf.random_normal_initializer(seed=5)
parts = [initializer([4, 1], partition_shape=[2, 1], partition_offset=[start, 0]).numpy() for start in (0, 2)]
if (parts[0] == parts[1]).all():
    sys.exit(f"rows 0 and 1 are rows 2 and 3 again: {parts[0].ravel().tolist()}")
