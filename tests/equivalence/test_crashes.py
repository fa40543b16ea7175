"""A crash that a mistake causes says what to do at which line, and the program passes after that is done."""

from __future__ import annotations

from pathlib import Path

import crash_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 2, "timeout": 100}
CASES = [
    (programs.batch_without_run, "fail", "strategy.run(replica_step, args=(batch,))", programs.batch_with_run),
    (programs.fit_in_run, "inconclusive", "outside of strategy.run", programs.fit_without_run),
    (programs.condition_in_run, "fail", "Call strategy.run inside the condition", programs.run_in_condition),
    (
        programs.stateful_with_the_global_batch,
        "fail",
        "global_batch_size // strategy.num_replicas_in_sync",
        programs.stateful_with_the_part,
    ),
]
"""Program with the mistake, verdict, part of the advice, and the program that follows the advice."""


def _named(value):
    return getattr(value, "__name__", "")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("program", "verdict", "advice", "twin"), CASES, ids=_named)
def test_a_crash_says_what_to_do_and_that_helps(program, verdict, advice, twin):
    report = check_training(program, "mirrored", **GIVEN)
    text = " ".join(str(report).split())
    assert report.verdict == verdict, text
    assert advice in text
    assert f"Look at {Path(programs.__file__).relative_to(Path.cwd())}:" in text
    assert not ("ran on one device" in text and "OneDeviceStrategy raises" in text)
    mended = check_training(twin, "mirrored", **GIVEN)
    assert mended.verdict == "pass", str(mended)
