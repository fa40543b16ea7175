"""Of several ranks that failed, the one is named that failed by itself."""

from __future__ import annotations

import pytest

from pytest_ddl.bench.answers import BenchError, all_of
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
