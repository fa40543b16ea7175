"""Show that tf_keras cannot evaluate exactly with parameter servers before the model was trained.

Expected:
The metrics of the whole data, as evaluate gives them after a call of fit.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
cluster = tf.train.ClusterSpec({"worker": ["localhost:21764"], "ps": ["localhost:21765"]})
servers = [tf.distribute.Server(cluster, job_name=name, task_index=0, protocol="grpc") for name in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
with tf.distribute.ParameterServerStrategy(resolver).scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=["mae"], pss_evaluation_shards=1)
try:
    model.evaluate(tf.data.Dataset.from_tensors(([[1.0]], [[2.0]])), verbose=0)
except TypeError as error:
    raise SystemExit(str(error).split("TypeError: ")[-1].strip()) from None
