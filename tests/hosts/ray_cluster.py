"""Run a Ray cluster of two nodes on this machine until the end of stdin. Print its address.

The arguments are a short folder for Ray's files, and one folder for temporary files of each node. Programs on a node
get the name of its folder as HOSTNAME.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ray.cluster_utils import Cluster


def main() -> None:
    own, *folders = sys.argv[1:]
    # Ray leaves the address of the cluster in this folder, and 2.60 no longer makes the folder itself.
    os.environ["RAY_TMPDIR"] = own
    Path(own, "ray").mkdir()
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": own}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for folder in folders:
            cluster.add_node(num_cpus=2, env_vars={"HOSTNAME": Path(folder).name, "TMPDIR": folder})
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
