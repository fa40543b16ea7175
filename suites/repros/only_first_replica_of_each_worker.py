"""Show that ONLY_FIRST_REPLICA takes the first replica of each worker, so that the workers' copies differ.

Expected:
All workers hold the value of the first replica of the first worker. The documentation of ONLY_FIRST_REPLICA says that
the value comes from the first replica only.
"""

import json, os, subprocess, sys  # noqa: E401, I001

TASK = len(sys.argv) > 1 and int(sys.argv[1])
if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, __file__, task], stdout=-1, text=True) for task in "01"]
    values = [rank.communicate()[0][-1] for rank in ranks]
    raise SystemExit(f"the workers hold {' and '.join(values)}" if values != ["0", "0"] else 0)
cluster = {"worker": ["localhost:21750", "localhost:21751"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": TASK}})
import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    first = tf.Variable(5, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
strategy.run(lambda: first.assign(tf.distribute.get_replica_context().replica_id_in_sync_group))
sys.stdout.write(str(int(first.numpy())))
