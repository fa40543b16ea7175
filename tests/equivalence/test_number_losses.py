"""A loss function of fit that returns one number: the coupling of the examples and the factor are both said."""

from __future__ import annotations

import number_loss_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 2, "timeout": 100}


@pytest.mark.slow
def test_a_loss_that_is_one_number_is_explained_with_its_factor():
    report = check_training(programs.one_number, "mirrored", **GIVEN)
    finding = report.findings[0]
    assert finding.cause == "batch-coupled-loss", str(report)
    assert "all are about 2 times too large" in finding.evidence
    assert "divide the loss of the whole batch by their number" in finding.fix
    assert "divides only a loss for each example" in finding.fix
    assert "to accept:" not in str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_loss_for_each_example_is_right():
    report = check_training(programs.one_for_each_example, "mirrored", **GIVEN)
    assert report.verdict == "pass", str(report)
