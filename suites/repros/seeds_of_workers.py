"""Show that a layer with random numbers cannot be built on several workers.

Expected:
The layer is built: its seed, a variable of uint32, is that of the first worker.
"""

import json, os, subprocess, sys  # noqa: E401, I001

if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, __file__, task], stdout=-1, text=True) for task in "01"]
    found = [rank.communicate()[0].splitlines()[-1] for rank in ranks]
    raise SystemExit(f"worker 0: {found[0]}" if found[0] != "built" else 0)
cluster = {"worker": ["localhost:21754", "localhost:21755"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": int(sys.argv[1])}})
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

with tf.distribute.MultiWorkerMirroredStrategy().scope():
    try:
        keras.layers.Dropout(0.5)
        sys.stdout.write("built")
    except tf.errors.InvalidArgumentError as error:
        sys.stdout.write(f"\nInvalidArgumentError: {error}"[:99])
