"""``fit`` with callbacks and validation: correct programs pass, and what a callback does wrong is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fit_programs as programs

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "timeout": 150}


@pytest.mark.nightly(each_commit=("scheduled_lazily", "stopped_early_in_tf_keras"))
@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        programs.scheduled,
        programs.stopped_early,
        programs.split,
        programs.scheduled_lazily,
        programs.scheduled_in_tf_keras,
        programs.stopped_early_in_tf_keras,
        programs.split_in_tf_keras,
    ],
)
def test_right_programs_pass(program):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_callback_that_sets_another_rate_is_named():
    report = check_training(programs.rate_of_replicas, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "learning-rate-differs", str(report)
