"""Messages about the ends of ranks, without any process."""

from __future__ import annotations

import pytest

from pytest_ddl.cluster.cluster import Answer, Fate
from pytest_ddl.cluster.explain import explain, main_thread_first, name_ranks, start_error, summarize
from pytest_ddl.cluster.protocol import Failure


def raised(rank: int, message: str) -> Answer:
    return Answer(rank, f"worker:{rank}", Fate.REPLIED, failure=Failure("ValueError", message, f"Traceback {message}"))


@pytest.mark.parametrize(
    ("ranks", "total", "words"),
    [([0], 1, "the rank"), ([0, 1], 2, "all 2 ranks"), ([1], 2, "rank 1 of 2"), ([0, 2], 4, "ranks 0, 2 of 4")],
)
def test_ranks_are_named(ranks: list[int], total: int, words: str) -> None:
    assert name_ranks(ranks, total) == words


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with status 0 before it had finished"),
        (-9, "was killed by SIGKILL"),
        (None, "closed its connection and did not end"),
    ],
)
def test_ends_are_described(status: int | None, words: str) -> None:
    assert Answer(0, "worker:0", Fate.DIED, exit_status=status).describe_end() == words


def test_a_start_that_is_late_names_the_option() -> None:
    late = [Answer(rank, f"worker:{rank}", Fate.DEADLINE) for rank in range(2)]
    first = str(start_error("mirrored", late)).splitlines()[0]
    assert first.count("--ddl-start-timeout or PYTEST_DDL_START_TIMEOUT") == 1
    assert "start-timeout" not in str(start_error("mirrored", [raised(0, "wrong argument")]))


def test_the_exception_is_the_cause_and_not_the_stopped_rank() -> None:
    answers = [Answer(0, "worker:0", Fate.STOPPED, stacks="Thread 1:\n  File x"), raised(1, "here")]
    assert summarize(answers) == "ValueError on rank 1 of 2: here"
    text = explain(answers)
    assert text.index("Traceback here") < text.index("stopped because another rank had failed")


def test_equal_exceptions_are_reported_once_and_different_ones_all() -> None:
    assert explain([raised(0, "same"), raised(1, "same")]).count("Traceback same") == 1
    text = explain([raised(0, "one"), raised(1, "two")])
    assert "Traceback one" in text
    assert "Traceback two" in text


def test_exceptions_that_name_one_object_by_its_addresses_are_equal() -> None:
    text = explain([raised(0, "<Model object at 0x7f01> is wrong"), raised(1, "<Model object at 0x7f02> is wrong")])
    assert text.startswith("ValueError on all 2 ranks: <Model object at 0x7f01> is wrong")
    assert text.count("Traceback") == 1
    assert explain([raised(0, "flags 0x1"), raised(1, "flags 0x2")]).count("Traceback") == 2


def test_ranks_that_were_not_asked_count_too() -> None:
    text = explain([raised(0, "here"), raised(2, "here")], 3)
    assert text.startswith("ValueError on ranks 0, 2 of 3: here")
    assert "ranks 0, 2 of 3 raised ValueError" in text


def test_a_rank_without_last_words_is_reported_once() -> None:
    answers = [Answer(0, "worker:0", Fate.REPLIED), Answer(1, "worker:1", Fate.DIED, exit_status=0)]
    assert explain(answers) == "rank 1 of 2 (worker:1) exited with status 0 before it had finished"


def test_the_main_thread_comes_first_without_the_frames_of_the_tool() -> None:
    from pytest_ddl.cluster import worker

    main = f'Thread 2:\n  File "test.py" in test_x\n  File "{worker.__file__}" in run\n'
    stacks = f'Thread 1:\n  File "a" in pool\n\n{main}'
    assert main_thread_first(stacks) == 'Thread 2:\n  File "test.py" in test_x\n\nThread 1:\n  File "a" in pool'
