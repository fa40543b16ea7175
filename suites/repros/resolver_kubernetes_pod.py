"""Show that KubernetesClusterResolver reads the configuration file of a user in a pod.

Expected:
In a pod, the resolver loads the configuration of the cluster (WITHIN_CLUSTER), also in cluster_spec().
"""

import sys
from types import ModuleType
from unittest.mock import Mock

import tensorflow as tf

fake = ModuleType("kubernetes")
fake.config, fake.client = Mock(), Mock()
fake.config.load_kube_config.side_effect = FileNotFoundError("~/.kube/config")
sys.modules["kubernetes"] = fake
try:
    tf.distribute.cluster_resolver.KubernetesClusterResolver({"worker": []}).cluster_spec()
except FileNotFoundError as error:
    sys.exit(f"in a pod, the resolver reads {error}")
