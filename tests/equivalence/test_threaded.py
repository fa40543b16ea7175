"""Training in a thread of the program is compared to its end, and an exception there is one of the program."""

from __future__ import annotations

import pytest
import threaded_programs as programs

from pytest_ddl import check_training

CASES = [
    (programs.waits_for_its_thread, "pass", None),
    (programs.does_not_wait, "pass", None),
    (programs.multiplies_and_does_not_wait, "fail", None),
    (programs.raises_in_its_thread, "inconclusive", None),
    (programs.raises_in_its_thread_under_the_strategy, "fail", "worker-raised"),
]


@pytest.mark.nightly(each_commit=("does_not_wait",))
@pytest.mark.slow
@pytest.mark.parametrize(("program", "verdict", "cause"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_training_in_a_thread_is_judged_to_its_end(program, verdict, cause):
    report = check_training(program, "mirrored", global_batch_size=12, timeout=200)
    assert report.verdict == verdict, str(report)
    assert [found.cause for found in report.findings] == [cause] * (verdict == "fail"), str(report)
