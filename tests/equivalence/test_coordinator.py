"""Programs that schedule their own steps on a ClusterCoordinator: what is compared, and what is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import coordinator_programs as programs

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "timeout": 120}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("program", [programs.records_once, programs.records_each_step_of_one_device])
def test_a_right_program_passes_and_says_what_was_compared(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.passed, str(report)
    assert "matches one device" not in str(report)
    # Keras' own counter may lose updates; its weights do not.
    assert {finding.variable for finding in report.approximations} <= {"sgd/iteration"}


@pytest.mark.parametrize("program", [programs.loses_updates, programs.loses_updates_recorded_on_one_device])
def test_updates_that_are_lost_are_found(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert [(finding.check, finding.cause) for finding in report.findings] == [("PS", "lost-update")], str(report)


def test_nothing_to_compare_is_no_pass():
    report = check_training(programs.moves_by_a_rule_of_its_own, "parameter_server", **GIVEN)
    assert report.verdict == "inconclusive"
    assert any("no weight can be compared with one device" in reason for reason in report.inconclusive)
