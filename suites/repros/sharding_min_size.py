"""Show that a shard has 12 bytes, although the partitioner promises 16.

Expected:
No shard is smaller than min_shard_bytes if a smaller number of shards makes that possible.
"""

import sys

import tensorflow as tf

partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=16, max_shards=9)
shards = partitioner(tf.TensorShape([10]), tf.float32)[0]
if 10 // shards * 4 < 16:
    sys.exit(f"{shards} shards of 40 bytes: the smallest has {10 // shards * 4} bytes, and the minimum is 16")
