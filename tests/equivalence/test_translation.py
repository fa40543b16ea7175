"""Dropout that is declared hides nothing in a translation Transformer, on real clusters."""

from __future__ import annotations

import pytest

from pytest_ddl import check_training
from tests.planted.translation import PLANTED


def _check(train, entry):
    expect = dict.fromkeys(entry.expect_of_twin, "the Dropout of Keras draws alike on all replicas")
    return check_training(train, "mirrored", global_batch_size=8, steps=3, timeout=entry.timeout, expect=expect)


# Long programs: one strategy or one model runs for each commit.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("entry", PLANTED, ids=lambda entry: entry.name)
def test_a_right_transformer_passes_once_dropout_is_declared(entry):
    report = _check(entry.twin, entry)
    assert report.passed, str(report)
    assert {finding.check for finding, _reason in report.expected} == {"SEED"}
    step = next(result for result in report.results if result.check == "STEP-EQ")
    assert "over 3 steps (with the same random numbers for the same examples)" in step.reason


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("entry", PLANTED, ids=lambda entry: entry.name)
def test_declared_dropout_hides_no_loss_that_is_normalized_per_replica(entry):
    report = _check(entry.sin, entry)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == entry.causes[0], str(report)
    assert not any("random" in str(finding.cause) for finding in report.findings)
