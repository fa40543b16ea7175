"""A training step of each model under each strategy, on one and two replicas, the batch per replica kept.

A dash for people, a gate on what is better when lower; ``pytest_ddl.bench.asv`` says what is in them.
"""

from __future__ import annotations

import os
from typing import Any

from pytest_ddl.bench.asv import training_suite

STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored", "central_storage", "parameter_server")
# A core for each of two replicas, so that two have twice the hardware of one.
HOW: dict[str, Any] = {"batch_per_replica": 32, "pin": len(os.sched_getaffinity(0)) > 1, "seconds": 6.0, "energy": True}

GateMlp, DashMlp = training_suite(".models:mlp", STRATEGIES, name="Mlp", **HOW)
GateCnn, DashCnn = training_suite(".models:cnn", STRATEGIES, name="Cnn", **HOW)
GateEmbedding, DashEmbedding = training_suite(".models:embedding", STRATEGIES, name="Embedding", **HOW)
GateTransformer, DashTransformer = training_suite(".models:transformer", STRATEGIES, name="Transformer", **HOW)
