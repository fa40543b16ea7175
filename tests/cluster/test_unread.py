"""Large messages to and from a rank that is suspended: the deadline of the request holds for them too."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from pytest_ddl.cluster.cluster import Cluster, Fate
from pytest_ddl.cluster.local_process import LocalProcess
from pytest_ddl.cluster.protocol import Reply, RequestKind, decode, encode
from pytest_ddl.cluster.resources import PortLease
from pytest_ddl.strategies.spec import StrategySpec, Task
from tests.polling import wait_until

LARGE = 1 << 22
"""Bytes that no pipe or socket takes before the other side reads."""
SOON = 0.3


class NoLauncher:
    """Starts nothing. A killed process has ended at once."""

    def __init__(self) -> None:
        self.process = LocalProcess(self._signal, lambda _timeout: None)

    def _signal(self, _pid: int, number: int) -> None:
        if number == signal.SIGKILL:
            self.process.exit_status = -9

    def fileno(self) -> None:
        return None


@pytest.fixture
def rank() -> Iterator[tuple[Cluster, Connection]]:
    """A cluster of one rank, and the rank's end of its channel."""
    launcher = NoLauncher()
    cluster = Cluster(StrategySpec("hand"), cast("Any", launcher), PortLease(0), [Task("worker", 0)], num_ranks=1)
    end = Connection(os.dup(launcher.process.fds[0]))
    launcher.process.started(1)
    cluster.processes.append(launcher.process)
    yield cluster, end
    cluster.close()
    end.close()


def ask(cluster: Cluster, body: Any = None, seconds: float = SOON) -> list[Fate]:
    return [answer.fate for answer in cluster.ask(RequestKind.CALL, body, deadline=time.monotonic() + seconds)]


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ddl-send"]


def test_a_large_request_that_is_never_read_meets_the_deadline(rank: tuple[Cluster, Connection]) -> None:
    cluster, end = rank
    assert ask(cluster, bytes(LARGE)) == [Fate.DEADLINE]
    assert senders()
    end.close()
    cluster.close()
    wait_until(lambda: not senders(), "the thread that sends outlives its cluster", 10)


def test_closing_ends_a_thread_that_sends(rank: tuple[Cluster, Connection]) -> None:
    cluster, _end = rank
    assert ask(cluster, bytes(LARGE)) == [Fate.DEADLINE]
    cluster.close()
    wait_until(lambda: not senders(), "the thread that sends outlives its cluster", 10)


def test_a_large_request_that_is_read_is_answered(rank: tuple[Cluster, Connection]) -> None:
    cluster, end = rank

    def serve() -> None:
        request = decode(end.recv_bytes())
        end.send_bytes(encode(Reply(request.id, request.body)))

    thread = threading.Thread(target=serve)
    thread.start()
    (answer,) = cluster.ask(RequestKind.CALL, bytes(LARGE), deadline=time.monotonic() + 60)
    thread.join()
    assert answer.body == bytes(LARGE)


@pytest.mark.parametrize("size", [2, 4, 10])
def test_a_reply_that_stops_in_the_middle_meets_the_deadline(rank: tuple[Cluster, Connection], size: int) -> None:
    cluster, end = rank
    reply = encode(Reply(1, "never complete"))
    os.write(end.fileno(), (struct.pack("!i", len(reply)) + reply)[:size])
    assert ask(cluster) == [Fate.DEADLINE]
    assert cluster.dirty == "deadline exceeded"


def test_a_reply_may_arrive_in_parts(rank: tuple[Cluster, Connection]) -> None:
    cluster, end = rank
    reply = encode(Reply(1, "complete"))
    data = struct.pack("!i", len(reply)) + reply

    def stuck(_answered: Any) -> bool:
        nonlocal data
        os.write(end.fileno(), data[:7])
        data = data[7:]
        return False

    (answer,) = cluster.ask(RequestKind.CALL, deadline=time.monotonic() + 60, stuck=stuck)
    assert answer.body == "complete"


def test_the_longest_messages_have_a_longer_header() -> None:
    process = LocalProcess(lambda _pid, _number: None, lambda _timeout: None)
    end = Connection(os.dup(process.fds[0]))
    os.write(end.fileno(), struct.pack("!i", -1) + struct.pack("!Q", 3) + b"abc")
    assert process.receive() == b"abc"
    end.send_bytes(b"next")
    assert process.receive() == b"next"
    with pytest.raises(BlockingIOError):
        process.receive()
    process.close()
    end.close()
