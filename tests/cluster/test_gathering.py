"""Answers of ranks are gathered with one deadline, through pipes that are filled by hand."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from pytest_ddl.cluster import cluster as cluster_module
from pytest_ddl.cluster.cluster import Cluster, ClusterError, Fate
from pytest_ddl.cluster.local_process import LocalProcess
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.protocol import EndNotice, Failure, Reply, Request, RequestKind, decode, encode
from pytest_ddl.cluster.resources import PortLease
from pytest_ddl.strategies.spec import StrategySpec, Task

SOON = 0.05
FAR = 60.0


class HandLauncher:
    """Starts nothing: the worker's end of each pipe is in the test's hands."""

    def __init__(self) -> None:
        self.processes: list[LocalProcess] = []

    def process(self) -> LocalProcess:
        process = LocalProcess(self._signal, lambda _timeout: None)
        process.pid = 101 + len(self.processes)
        self.processes.append(process)
        return process

    def _signal(self, pid: int, number: int) -> None:
        if number == signal.SIGKILL:
            self.processes[pid - 101].exit_status = -9

    def fileno(self) -> None:
        return None


Ends = list[Connection]


def send(end: Connection, reply: Reply | EndNotice) -> None:
    end.send_bytes(encode(reply))


def receive(end: Connection) -> Request:
    request: Request = decode(end.recv_bytes())
    return request


@pytest.fixture
def by_hand() -> Iterator[tuple[Cluster, Ends]]:
    """A cluster of two ranks, and the workers' ends of its pipes."""
    launcher = HandLauncher()
    tasks = [Task("worker", 0), Task("worker", 1)]
    cluster = Cluster(StrategySpec("hand"), cast("Any", launcher), PortLease(1), tasks, num_ranks=2)
    ends = []
    for _ in tasks:
        process = launcher.process()
        ends.append(Connection(os.dup(process.fds[0])))
        process._theirs.close()
        cluster.processes.append(process)
    yield cluster, ends
    cluster.close()


def ask(cluster: Cluster, seconds: float = FAR, **arguments: Any) -> list[Fate]:
    answers = cluster.ask(RequestKind.CALL, deadline=time.monotonic() + seconds, **arguments)
    return [answer.fate for answer in answers]


def test_all_answer(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    for end in ends:
        send(end, Reply(1, "done"))
    assert ask(cluster) == [Fate.REPLIED, Fate.REPLIED]
    assert (cluster.dirty, cluster.retired) == ("", "")


def test_requests_of_several_threads_are_asked_one_after_another(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand

    def work(end: Connection) -> None:
        for _ in range(4):
            request = receive(end)
            # Were a second request there before the answer to the first, the answers could be mixed up.
            assert not end.poll()
            send(end, Reply(request.id, request.body))

    with ThreadPoolExecutor(6) as threads:
        workers = [threads.submit(work, end) for end in ends]
        asked = [
            threads.submit(cluster.ask, RequestKind.CALL, number, deadline=time.monotonic() + FAR)
            for number in range(4)
        ]
        answers = [[answer.body for answer in one.result()] for one in asked]
        for worker in workers:
            worker.result()
    assert answers == [[number, number] for number in range(4)]
    assert (cluster.dirty, cluster.retired) == ("", "")


@pytest.fixture
def waiting(by_hand: tuple[Cluster, Ends]) -> Iterator[Cluster]:
    """The cluster while another thread waits for an answer that does not come."""
    cluster, ends = by_hand
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, cluster)
        request = receive(ends[0])
        yield cluster
        for end in ends:
            send(end, Reply(request.id, "late"))
        assert asked.result() == [Fate.REPLIED, Fate.REPLIED]


def test_a_request_that_has_no_turn_until_its_deadline_is_refused(waiting: Cluster) -> None:
    with pytest.raises(ClusterError, match="one request at a time, and another thread still waits for an answer"):
        ask(waiting, SOON)
    assert waiting.dirty == ""


def test_a_cluster_that_a_thread_still_asks_is_not_given_on(waiting: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddl.cluster.cluster.SETTLE_WAIT", SOON)
    waiting.settle()
    assert "another thread still waits for an answer" in waiting.dirty


def test_an_answer_to_an_older_request_is_dropped(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    send(ends[0], Reply(1, "first"))
    assert ask(cluster, ranks=[0]) == [Fate.REPLIED]
    for end in ends:
        send(end, Reply(1, "late"))
        send(end, Reply(2, "in time"))
    answers = cluster.ask(RequestKind.CALL, deadline=time.monotonic() + FAR)
    assert [answer.body for answer in answers] == ["in time", "in time"]
    assert "answered an older request" in cluster.dirty
    with pytest.raises(ClusterError, match="has ended"):
        ask(cluster)


def test_an_exception_ends_the_wait_for_the_others(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    send(ends[1], Reply(1, failure=Failure("ValueError", "no", "")))
    started = time.monotonic()
    assert ask(cluster) == [Fate.STOPPED, Fate.REPLIED]
    assert time.monotonic() - started < FAR / 2
    assert cluster.dirty


def later(action: Callable[[], object]) -> Callable[[Collection[int]], bool]:
    """Return a callback ``stuck`` that acts when the grace after the first answer is over.

    The cluster calls it once with the first answer, and then only if it still waits after the grace.
    """
    calls = iter(range(1000))

    def stuck(answered: Collection[int]) -> bool:
        if answered and next(calls) == 1:
            action()
        return False

    return stuck


def test_the_report_of_another_failed_rank_may_take_longer(
    by_hand: tuple[Cluster, Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, ends = by_hand
    monkeypatch.setattr(cluster_module, "GRACE", SOON)
    send(ends[0], EndNotice(1))
    send(ends[1], Reply(1, failure=Failure("ValueError", "no", "")))

    def report() -> None:
        send(ends[0], Reply(1, failure=Failure("KeyError", "also", "")))

    assert ask(cluster, stuck=later(report)) == [Fate.REPLIED, Fate.REPLIED]
    assert not cluster.dirty


def test_the_report_of_a_failed_rank_has_its_limit_too(
    by_hand: tuple[Cluster, Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, ends = by_hand
    monkeypatch.setattr(cluster_module, "GRACE", SOON)
    monkeypatch.setattr(cluster_module, "REPORT_WAIT", SOON)
    send(ends[0], EndNotice(1))
    send(ends[1], Reply(1, failure=Failure("ValueError", "no", "")))
    assert ask(cluster) == [Fate.STOPPED, Fate.REPLIED]


def test_a_closed_pipe_is_a_death(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    cast("LocalProcess", cluster.processes[0]).exit_status = 0
    ends[0].close()
    send(ends[1], Reply(1, "done"))
    answers = cluster.ask(RequestKind.CALL, deadline=time.monotonic() + FAR)
    assert [answer.fate for answer in answers] == [Fate.DIED, Fate.REPLIED]
    assert answers[0].describe_end() == "exited with status 0 before it had finished"
    assert cluster.dirty == "rank 0 died"


@dataclass
class Result:
    """Stands for a result of a phase, with a value that the test of a user put into it."""

    user_properties: Any


class NotWelcome:
    """A value that can be pickled and not unpickled, with an exception that looks like a closed pipe."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise EOFError("not here")


class Unprintable:
    """A value that can neither be pickled nor shown."""

    def __repr__(self) -> str:
        raise RuntimeError

    __reduce__ = __repr__


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (Result([("good", 1), ("x", lambda: 1)]), "user_properties['x'] is <function"),
        ([1, {"key": (2, threading.Lock())}], "[1]['key'][1] is <unlocked _thread.lock"),
        (Unprintable(), "the reply is a Unprintable"),
    ],
)
def test_a_reply_that_cannot_be_sent_is_a_failure_that_names_it(
    by_hand: tuple[Cluster, Ends], body: Any, words: str
) -> None:
    cluster, ends = by_hand
    send(ends[0], Reply(1, body))
    send(ends[1], Reply(1, "done"))
    answer, other = cluster.ask(RequestKind.CALL, deadline=time.monotonic() + FAR)
    assert answer.failure is not None
    assert words in answer.failure.message
    assert "cannot be sent to the pytest process" in answer.failure.message
    assert other.body == "done"


def test_a_reply_that_cannot_be_read_is_a_failure_and_no_death(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    send(ends[0], Reply(1, NotWelcome()))
    send(ends[1], Reply(1, "done"))
    answer, other = cluster.ask(RequestKind.CALL, deadline=time.monotonic() + FAR)
    assert answer.failure is not None
    assert "cannot be read in the pytest process: EOFError: not here" in answer.failure.message
    assert other.body == "done"
    assert "unreadable" in cluster.dirty


def test_silence_meets_the_deadline(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    send(ends[0], Reply(1, "done"))
    assert ask(cluster, SOON) == [Fate.REPLIED, Fate.DEADLINE]
    assert cluster.dirty == "deadline exceeded"


def test_a_reply_may_limit_the_patience(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    send(ends[0], Reply(1, "skipped"))
    assert ask(cluster, patience=lambda body: SOON if body == "skipped" else None) == [Fate.REPLIED, Fate.STOPPED]


def test_an_interrupted_request_leaves_the_cluster_dirty(
    by_hand: tuple[Cluster, Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ends = by_hand

    def interrupt(*_arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(cluster)
    assert cluster.dirty == "interrupted"


def test_a_rank_that_ended_between_two_requests_is_not_alive(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    assert cluster.alive
    # The launcher does not know its exit status yet.
    ends[1].close()
    assert not cluster.alive
    cluster.close()
    assert not cluster.alive


def test_fixtures_that_dead_ranks_kept_are_reported_as_lost(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, ends = by_hand
    reported: list[list[Fate]] = []
    cluster.on_session_end = lambda answers: reported.append([answer.fate for answer in answers])
    cast("LocalProcess", cluster.processes[1]).exit_status = -9
    ends[1].close()
    send(ends[0], Reply(1, "torn down"))
    cluster.close()
    assert reported == [[Fate.REPLIED, Fate.DIED]]


def test_fixtures_of_a_dirty_cluster_are_reported_without_answers(by_hand: tuple[Cluster, Ends]) -> None:
    cluster, _ends = by_hand
    reported: list[int] = []
    cluster.on_session_end = lambda answers: reported.append(len(answers))
    cluster.dirty = "deadline exceeded"
    cluster.close()
    cluster.close()
    assert reported == [0]


def test_an_ended_launcher_loses_the_fixtures_too(by_hand: tuple[Cluster, Ends], monkeypatch: Any) -> None:
    cluster, _ends = by_hand
    reported: list[int] = []
    cluster.on_session_end = lambda answers: reported.append(len(answers))

    def ended(*_arguments: Any) -> Any:
        raise LaunchError("the zygote has ended: it was killed\nits log")

    monkeypatch.setattr(cluster, "_ready", ended)
    cluster.tear_down_session()
    assert reported == [0]
    assert cluster.dirty == "the zygote has ended: it was killed"
