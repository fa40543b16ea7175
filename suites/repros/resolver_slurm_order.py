"""Show that the task on the first node of Slurm's list gets the address of another node.

Expected:
Task 0 has the address of n9. Slurm gives its tasks to the nodes in the order of its list, not in the alphabetical
order of their names.
"""

import os
import sys

import tensorflow as tf

os.environ |= {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n[9-10]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver({"worker": 2}, gpus_per_node=1, auto_set_gpu=False)
address = resolver.cluster_spec().task_address("worker", 0)
if not address.startswith("n9:"):
    sys.exit(f"rank 0 runs on n9, and its address is {address}")
