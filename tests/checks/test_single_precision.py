"""A float64 comparison that differs by the rounding of float32 is made again in the program's own precision."""

from __future__ import annotations

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.own_precision import is_of_single_precision

ONE_THIRD_IN_SINGLE = 1.0 + 2.0**-25


def test_a_factor_that_was_rounded_to_float32_is_a_matter_of_precision():
    report = judge(*pair(Program(replicas=2), scale=ONE_THIRD_IN_SINGLE))
    assert report.verdict == "fail"
    assert is_of_single_precision(report)


@pytest.mark.parametrize("sin", [{"scale": 2.0}, {"scale": 0.5}, {"scale": 1.0 + 1e-4}, {"mean_of_means": True}])
def test_a_defect_is_not(sin):
    report = judge(*pair(Program(replicas=2, batches=(13, 13)), **sin))
    assert not is_of_single_precision(report)


def test_a_pass_is_not_run_again():
    assert not is_of_single_precision(judge(*pair(Program(replicas=2))))
