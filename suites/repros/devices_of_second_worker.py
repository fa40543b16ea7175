"""Show that the devices of a replica's context cannot be read on any worker but the first.

Expected:
ReplicaContext.devices holds the name of the device of this replica, on every worker.
"""

import json, os, subprocess, sys  # noqa: E401, I001

if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, __file__, task], stdout=-1, text=True) for task in "01"]
    found = [rank.communicate()[0].splitlines()[-1] for rank in ranks]
    raise SystemExit(f"worker 1: {found[1]}" if "Error" in found[1] else 0)
cluster = {"worker": ["localhost:21752", "localhost:21753"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": int(sys.argv[1])}})
import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()
try:
    strategy.run(lambda: sys.stdout.write(str(tf.distribute.get_replica_context().devices)))
except IndexError as error:
    sys.stdout.write(f"\nIndexError: {error}")
