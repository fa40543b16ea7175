"""A process that ends on one device is no verdict about the strategy."""

from __future__ import annotations

from functools import partial

import ending_on_one_device as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 2, "timeout": 100}
KILLED = "was killed by SIGSEGV"


def test_a_run_that_ended_once_is_repeated(tmp_path):
    report = check_training(partial(programs.once, file=tmp_path / "ended"), "mirrored", **GIVEN)
    assert report.passed, str(report)
    assert report.reference.precision == "float64"
    (note,) = [note for note in report.notes if KILLED in note]
    assert note.startswith("one device was run again, because the process of the first run")
    assert "ending_on_one_device.py:" in note


@pytest.mark.slow
def test_a_run_that_always_ends_is_the_reason():
    report = check_training(programs.always, "mirrored", **GIVEN)
    assert report.verdict == "inconclusive"
    text = " ".join(str(report).split())
    assert f"RUN: the process of the run on one device ended before the function returned: it {KILLED}" in text
    assert "in always: os.kill(os.getpid(), signal.SIGSEGV)" in text
    assert "call run.watch" not in text


@pytest.mark.nightly
@pytest.mark.slow
def test_another_failure_under_the_strategy_does_not_hide_it():
    report = check_training(programs.always_and_raises_under_a_strategy, "mirrored", **GIVEN)
    assert report.verdict == "fail"
    assert KILLED in report.findings[0].message
    assert "ValueError: planted" in report.findings[0].message
