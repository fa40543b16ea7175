"""Metrics of a matrix that was measured."""

from __future__ import annotations

from functools import partial

import pytest
from target_programs import regress

from pytest_ddl.bench import Matrix, estimate, measure
from pytest_ddl.bench.metrics import METRICS

TWO = "mirrored[replicas=2]"
WITHOUT_NUMBER = {"strong_scaling_efficiency", "strong_scaling_overhead", "peak_device_memory"}
"""Metrics that have no number for weak scaling on CPUs."""


@pytest.fixture(scope="module")
def measured() -> Matrix:
    return measure(
        partial(regress, learning_rate=0.01),
        ["one_device", "mirrored", "tpu"],
        batch_per_replica=8,
        launches=2,
        device="cpu",
        energy=True,
        warm_up=2,
        steps_per_block=3,
        blocks=2,
        seconds=0.01,
    )


@pytest.mark.slow
def test_every_metric_has_a_number_with_an_interval_or_a_reason(measured: Matrix) -> None:
    for name, metric in METRICS.items():
        if metric.of is None:
            continue
        found = estimate(name, measured, TWO)
        if found.value is None:
            assert name in WITHOUT_NUMBER or "energy" in found.note
            assert found.note
        else:
            assert name not in WITHOUT_NUMBER
            assert len(found.samples) == 2
            assert found.low is not None
            assert found.high is not None
            assert found.low <= found.value <= found.high


@pytest.mark.slow
def test_table_says_what_was_measured_and_what_not(measured: Matrix) -> None:
    text = str(measured)
    assert "tpu was skipped: " in text
    assert "95 % t interval over 2 launches" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.slow
def test_energy_ends_with_the_steady_steps(measured: Matrix) -> None:
    reading = measured.of("one_device")[0].ranks[0].energy
    assert reading.reason != "not asked for"
    assert (reading.joules is None) == bool(reading.reason)
    assert reading.seconds > 0
