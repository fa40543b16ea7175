"""An attribute that one replica overwrites while another one uses it is named, and others are not."""

from __future__ import annotations

from pathlib import Path

import attribute_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 2, "timeout": 100}
CAUSE = "attribute-shared-by-replicas"


@pytest.mark.nightly
@pytest.mark.slow
def test_an_attribute_that_a_replica_overwrites_is_named_with_its_line():
    report = check_training(programs.kept_over_a_collective, "mirrored", **GIVEN)
    assert [finding.cause for finding in report.findings] == [CAUSE], str(report)
    evidence = report.findings[0].evidence
    assert "Residual.shortcut" in evidence
    assert f"{Path(programs.__file__).name}:" in evidence


@pytest.mark.nightly
@pytest.mark.slow
def test_workers_with_one_replica_each_share_no_attribute():
    report = check_training(programs.kept_over_a_collective, "multi_worker_mirrored", **GIVEN)
    assert report.verdict == "pass", str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_attribute_that_nobody_overwrites_too_early_is_right():
    report = check_training(programs.kept_to_look_at, "mirrored", **GIVEN)
    assert report.verdict == "pass", str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_attribute_is_not_blamed_for_another_bug():
    report = check_training(programs.another_bug_beside, "mirrored", **GIVEN)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count", str(report)
