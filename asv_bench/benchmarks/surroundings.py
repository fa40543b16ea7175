"""Work around a training step: distributed iteration over the input without a step, saving and restoring."""

from __future__ import annotations

from pytest_ddl.bench.asv import training_suite

# One replica is measured only without a strategy; the benchmarks of training have the cost of a strategy on one.
SYNCHRONOUS = ("one_device", "mirrored[replicas=2]", "multi_worker_mirrored[workers=2]")

GateInput, DashInput = training_suite(
    ".pipelines:images", SYNCHRONOUS, name="Input", batch_per_replica=64, metrics=("step_time", "throughput")
)
GateSaving, _ = training_suite(
    ".pipelines:saving", SYNCHRONOUS, name="Saving", metrics=("step_time",), steps_per_block=1, warm_up=3
)
GateRestoring, _ = training_suite(
    ".pipelines:restoring", SYNCHRONOUS, name="Restoring", metrics=("step_time",), steps_per_block=1, warm_up=3
)
