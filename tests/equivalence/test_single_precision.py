"""Programs that cast to float32 in a step: right ones pass, and the cause of a mistake is recomputed."""

from __future__ import annotations

from functools import partial

import pytest
import single_precision_programs as programs

from pytest_ddl import check_training

pytestmark = pytest.mark.slow


def compare(wrong):
    return check_training(partial(programs.train, wrong=wrong), "mirrored", global_batch_size=12)


def test_a_right_program_passes():
    report = compare("")
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ("mean", "gradient-scaled-by-replica-count"),
        ("divided", "gradient-scaled-by-inverse-replica-count"),
        ("clipped", "gradient-clipped-before-aggregation"),
    ],
)
def test_a_cause_that_float64_cannot_recompute_is_named(wrong, cause):
    report = compare(wrong)
    assert report.findings[0].cause == cause, str(report)
