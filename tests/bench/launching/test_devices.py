"""Devices of a process, which TensorFlow lists together with those of the other tasks."""

from __future__ import annotations

import pytest

from pytest_ddl import current_rank
from pytest_ddl.bench.launching import stopwatch
from pytest_ddl.bench.launching.machine import own_devices


@pytest.mark.ddl(strategies=["all"])
def test_devices_of_other_tasks_are_left_out(ddl_strategy):
    import tensorflow as tf

    rank = current_rank()
    here = {"mirrored": 2, "central_storage": 2, "model_parallel": 4}.get(rank.spec.name, 1)
    assert own_devices("CPU") == [f"CPU:{number}" for number in range(here)]
    assert own_devices("GPU") == []
    if rank.num_ranks > 1 or rank.spec.name == "parameter_server":
        assert len(tf.config.list_logical_devices("CPU")) > here


@pytest.mark.ddl(strategies=["all"])
def test_a_process_waits_for_its_own_devices(ddl_strategy, monkeypatch):
    """Each device of a GPU's kind is waited for. Here those are CPUs, and one worker cannot wait for the other's."""
    waited = []
    monkeypatch.setattr(stopwatch, "own_devices", lambda kind: waited.append(kind) or own_devices("CPU"))
    stopwatch.synchronize()
    assert waited == ["GPU"]
