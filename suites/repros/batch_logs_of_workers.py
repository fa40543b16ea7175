"""Show that logs of batches of tf_keras are multiplied by the number of workers.

Expected:
The loss in the logs of a batch is 1, as in the logs of an epoch.
"""

import json, os, subprocess, sys  # noqa: E401, I001

TASK = len(sys.argv) > 1 and int(sys.argv[1])
if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, __file__, task], stdout=-1, text=True) for task in "01"]
    losses = [rank.communicate()[0].split()[-1] for rank in ranks]
    raise SystemExit(f"on_train_batch_end gets the loss {losses[0]} in place of 1" if losses != ["1", "1"] else 0)
cluster = {"worker": ["localhost:21752", "localhost:21753"]}
os.environ |= {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": TASK}})}
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf  # noqa: E402

with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1, "relu", False, "zeros")])
    model.compile("sgd", "mse")
show = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print(f"{logs['loss']:g}"))
model.fit(tf.ones((4, 1)), tf.ones((4, 1)), verbose=0, callbacks=[show])
