"""Workloads: a model, an optimizer and data for each kind of network.

To add a workload, write its file and list it here. Every strategy and every training loop then runs it.
"""

from __future__ import annotations

from suites.workloads import cnn, embedding, mlp, rnn

WORKLOADS = {"mlp": mlp.WORKLOAD, "cnn": cnn.WORKLOAD, "embedding": embedding.WORKLOAD, "rnn": rnn.WORKLOAD}
