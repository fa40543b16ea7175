"""A program that does not train, because it calls the run in a wrong way, gets the line to write."""

from __future__ import annotations

from functools import partial

import programs_that_never_train as programs
import pytest

from pytest_ddl import check_training


@pytest.mark.parametrize("loop", ["steps", "batches"])
def test_a_loop_that_never_begins_is_inconclusive_and_named(loop):
    report = check_training(partial(programs.program, wrong=loop), "mirrored", global_batch_size=4, timeout=100)
    assert report.verdict == "inconclusive"
    assert f"only in `for loss in run.{loop}(...):`" in str(report).splitlines()[0], str(report)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (programs.generator, "returned a generator, which nobody runs: train in the function itself, without yield"),
        (programs.coroutine, "returned a coroutine, which nobody runs: take async away"),
        (programs.function, "returned a function, which nobody runs: call it"),
    ],
)
def test_code_that_nobody_runs_is_inconclusive_and_named(train, said):
    report = check_training(train, "mirrored", global_batch_size=4, timeout=100)
    assert report.verdict == "inconclusive"
    assert said in str(report).splitlines()[0], str(report)


def test_a_step_that_takes_the_iterator_for_a_batch_gets_advice():
    report = check_training(
        partial(programs.program, wrong="takes the iterator"), "mirrored", global_batch_size=4, timeout=100
    )
    assert report.verdict != "pass"
    assert "begin it with batch = next(iterator)" in " ".join(str(report).split()), str(report)
