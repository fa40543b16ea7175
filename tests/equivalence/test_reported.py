"""Metrics, state and named values that a program casts to float32: no false alarm, and mistakes are found."""

from __future__ import annotations

from functools import partial

import pytest
import reported_programs as programs

from pytest_ddl import check_training

pytestmark = pytest.mark.slow


def test_sums_of_numbers_that_each_replica_casts_raise_no_alarm():
    report = check_training(programs.train, "mirrored", global_batch_size=12)
    assert report.passed, str(report)
    assert report.distributed.precision == "native"


@pytest.mark.parametrize(
    ("part", "check", "cause"),
    [
        ("state", "REPLICA-EQ", "state-not-aggregated"),
        ("metric", "METRIC-EQ", "metric-wrong"),
        ("value", "METRIC-EQ", "metric-wrong"),
    ],
)
def test_a_mistake_in_them_is_found(part, check, cause):
    report = check_training(partial(programs.train, **{part: False}), "mirrored", global_batch_size=12)
    assert [(finding.check, finding.cause) for finding in report.findings] == [(check, cause)], str(report)
