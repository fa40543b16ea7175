"""Show that SlurmClusterResolver has no addresses for nodes without GPUs.

Expected:
Each node has its tasks, which use the CPU.
"""

import os
import sys

import tensorflow as tf

os.environ |= {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
try:
    tf.distribute.cluster_resolver.SlurmClusterResolver({"worker": 2}, gpus_per_node=0).cluster_spec()
except ValueError as error:
    sys.exit(f"no GPUs: {error}")
