"""If several ranks fail, the report names the one that failed by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytest_ddl
from pytest_ddl.bench.launching.ranks import BenchError, all_of
from pytest_ddl.cluster import ship
from pytest_ddl.cluster.cluster import Answer, Fate
from pytest_ddl.cluster.protocol import Failure

STOPPED = Answer(0, "worker:0", Fate.STOPPED)
DIED = Answer(1, "worker:1", Fate.DIED, exit_status=-9, stderr="out of memory")
PEER_GONE = Answer(2, "worker:2", Fate.REPLIED, failure=Failure("tensorflow.errors.AbortedError", "peer down", "tb"))
RAISED = Answer(3, "worker:3", Fate.REPLIED, failure=Failure("ValueError", "no such file", "its traceback"))


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([STOPPED, DIED], r"worker:1 failed while it ran: was killed by SIGKILL\nout of memory"),
        ([STOPPED, PEER_GONE, DIED], "worker:1 failed"),
        ([STOPPED, PEER_GONE], "worker:2 failed .*peer down"),
        ([PEER_GONE, DIED, RAISED], r"worker:3 failed while it ran: ValueError: no such file\nits traceback"),
    ],
)
def test_the_rank_that_failed_by_itself_is_named(answers: list[Answer], words: str) -> None:
    with pytest.raises(BenchError, match=words):
        all_of(answers, "while it ran")


STOPPED_AT = f"""Thread 0x01 (most recent call first):
  File "/x/site-packages/tensorflow/server.py", line 9 in run

Current thread 0x02 (most recent call first):
  File "/x/site-packages/tensorflow/execute.py", line 5 in quick_execute
  File "/home/me/train.py", line 41 in train
  File "{Path(pytest_ddl.__file__).parent}/bench/remote.py", line 3 in measure_training
"""


def returned(rank: int, number: int) -> Answer:
    return Answer(rank, f"worker:{rank}", Fate.REPLIED, ship.pack(int, (number,)).call())


def test_all_ranks_that_are_silent_are_named_with_where_they_were() -> None:
    silent = [Answer(rank, f"worker:{rank}", Fate.DEADLINE, stacks=STOPPED_AT) for rank in (0, 1)]
    with pytest.raises(BenchError) as raised:
        all_of([*silent, DIED], "while it ran")
    assert "worker:1 failed while it ran: was killed" in str(raised.value)
    with pytest.raises(BenchError) as raised:
        all_of(silent, "while it ran")
    place = """
  File "/x/site-packages/tensorflow/execute.py", line 5 in quick_execute
  File "/home/me/train.py", line 41 in train"""
    expected = "".join(f"\nworker:{rank} had not ended{place}" for rank in (0, 1))
    assert str(raised.value) == f"worker:0, worker:1 failed while it ran: deadline exceeded{expected}"


def test_a_rank_that_outlives_the_others_is_not_said_to_follow_a_failure() -> None:
    with pytest.raises(BenchError, match=r"^worker:0 failed while it ran: worker:0 had not ended 60 s after worker:1 "):
        all_of([STOPPED, returned(1, 5)], "while it ran")
    with pytest.raises(BenchError, match=r"^worker:0 failed while it ran: deadline exceeded\nworker:0 had not ended$"):
        all_of([Answer(0, "worker:0", Fate.DEADLINE), returned(1, 5)], "while it ran")


@pytest.mark.parametrize("others", [[STOPPED], [PEER_GONE], [Answer(0, "worker:0", Fate.DEADLINE)], []])
def test_a_rank_that_ended_too_early_is_named_before_those_that_waited_for_it(others: list[Answer]) -> None:
    with pytest.raises(BenchError, match=r"^ended after 3 steps") as raised:
        all_of([*others, returned(1, 3)], "while it ran", lambda steps: f"ended after {steps} steps")
    assert all(f"{one.task} was still waiting for it" in str(raised.value) for one in others)


def test_an_error_comes_before_a_rank_that_ended_too_early() -> None:
    with pytest.raises(BenchError, match="worker:3 failed while it ran: ValueError"):
        all_of([RAISED, returned(1, 3)], "while it ran", lambda _steps: "ended early")


def test_why_a_rank_aborted_is_shown_however_long_the_stacks_are_that_follow() -> None:
    stderr = "F0000 Check failed: no such device\n" + "  File x.py, line 1\n" * 999 + "the last line"
    aborted = Answer(0, "worker:0", Fate.DIED, exit_status=-6, stdout="epoch 1\n" * 999, stderr=stderr)
    with pytest.raises(BenchError) as raised:
        all_of([aborted], "while it ran")
    assert "F0000 Check failed: no such device" in str(raised.value)
    assert "the last line" in str(raised.value)
    assert len(str(raised.value)) < 6500


def test_what_all_ranks_returned() -> None:
    answers = [Answer(rank, f"worker:{rank}", Fate.REPLIED, ship.pack(int, (rank,)).call()) for rank in (0, 1)]
    assert all_of(answers, "while it ran") == [0, 1]
