"""A training step of each model under each strategy, on one and two replicas, the batch per replica kept.

A dash for people, a gate on what is better when lower; ``pytest_ddl.bench.asv`` says what is in them.
"""

from __future__ import annotations

from typing import Any

from pytest_ddl.bench.asv import is_quick, training_suite

SYNCHRONOUS = ("one_device", "mirrored", "multi_worker_mirrored")
ALL = (*SYNCHRONOUS, "central_storage", "parameter_server")
HOW: dict[str, Any] = {
    "batch_per_replica": 32,
    # Most of a run is to be measured steps, and not starting, tracing, and asv's process for every number.
    "seconds": 20.0,
    "energy": True,
    # A quick run shows that all cells can be measured, and not each number of each.
    "metrics": ("step_time", "collectives", "throughput", "weak_scaling_efficiency") if is_quick() else None,
}

GateMlp, DashMlp = training_suite(".models:mlp", ALL, name="Mlp", **HOW)
GateCnn, DashCnn = training_suite(".models:cnn", SYNCHRONOUS, name="Cnn", **HOW)
GateEmbedding, DashEmbedding = training_suite(".models:embedding", SYNCHRONOUS, name="Embedding", **HOW)
GateTransformer, DashTransformer = training_suite(".models:transformer", SYNCHRONOUS, name="Transformer", **HOW)
