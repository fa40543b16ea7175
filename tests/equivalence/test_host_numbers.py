"""Numbers of global generators (Python, NumPy, TensorFlow), which each worker of a real cluster draws for itself."""

from __future__ import annotations

import host_number_programs as programs
import pytest

from pytest_ddl import check_training
from pytest_ddl.equivalence.probes.unseeded import CAUSE

GIVEN = {"global_batch_size": 12, "steps": 4, "timeout": 170}


@pytest.mark.nightly(each_commit=("shuffled_by_numpy", "weight_of_a_step_by_tensorflow"))
@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        programs.shuffled_by_numpy,
        programs.shuffled_by_python,
        programs.shuffled_before_a_seed,
        programs.weight_of_a_step,
        programs.shuffled_by_tensorflow,
        programs.weight_of_a_step_by_tensorflow,
    ],
    ids=lambda program: program.__name__,
)
def test_numbers_that_workers_do_not_share_are_found(program):
    report = check_training(program, "multi_worker_mirrored", **GIVEN)
    assert [finding.cause for finding in report.findings] == [CAUSE], str(report)
    assert check_training(program, "mirrored", **GIVEN).passed


@pytest.mark.nightly(each_commit=("plain", "shuffled_after_a_seed"))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "repeated"),
    [
        (programs.shuffled_after_a_seed, False),
        (programs.number_that_only_a_name_uses, True),
        (programs.data_of_its_own, True),
        (programs.weight_of_a_step_with_a_seed, False),
        (programs.weights_by_tensorflow, True),
        (programs.plain, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_right_programs_pass(program, repeated):
    report = check_training(program, "multi_worker_mirrored", **GIVEN)
    assert report.passed, str(report)
    assert any("unseeded" in rank.facts for rank in report.distributed.ranks) is repeated


@pytest.mark.slow
def test_numbers_of_each_worker_can_be_declared():
    report = check_training(programs.weight_of_a_step, "multi_worker_mirrored", **GIVEN, expect={CAUSE: "intended"})
    assert report.passed, str(report)
