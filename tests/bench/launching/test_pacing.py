"""Blocks on command: ranks that come, leave, are late, and trace."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_ddl.bench.launching import pacing
from pytest_ddl.bench.launching.pacing import LATE_TRACES, BlockOrder, Lane, Paced, Pacer, PacingError

PAST = 0.0
"""A deadline that has gone by: nothing waits."""


def made(parent=Path("/tmp")):
    return Pacer(parent)


def soon():
    return time.monotonic() + 30


class Rank(threading.Thread):
    """Answers every order at once, with the number of traces of each block."""

    def __init__(self, address, rank, seconds=1.0, traces=()):
        super().__init__(daemon=True)
        self.paced = Paced(address, rank, traces=1)
        self.seconds, self.traces = seconds, list(traces)
        self.orders = []

    def run(self):
        traced = 1
        while True:
            order = self.paced.order()
            self.orders.append(order)
            if order.steps == 0 and not order.canary:
                return
            traced += self.traces.pop(0) if self.traces else 0
            self.paced.done(self.seconds, traced)


@contextmanager
def paced(*ranks):
    """A pacer with ranks, each given by its settings."""
    with made() as pacer:
        threads = [Rank(pacer.address, number, **settings) for number, settings in enumerate(ranks)]
        # Accepted in the other order.
        lane = pacer.accept(len(threads), soon())
        for thread in threads:
            thread.start()
        yield lane, threads
        lane.stop()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
            thread.paced.close()


def test_all_ranks_run_a_block_and_tell_their_seconds_by_rank():
    with paced({"seconds": 3.0}, {"seconds": 5.0}) as (lane, threads):
        assert lane.run_block(20, soon()) == [3.0, 5.0]
        assert lane.run_block(7, soon()) == [3.0, 5.0]
    assert [thread.orders for thread in threads] == [[BlockOrder(20), BlockOrder(7), BlockOrder(0)]] * 2


def test_a_block_in_which_one_rank_traced_is_dropped_by_all():
    with paced({"traces": [0, 1, 0]}, {}) as (lane, threads):
        dropped = []
        for _ in range(3):
            lane.run_block(4, soon())
            dropped.append(lane.was_dropped)
    assert dropped == [False, True, False]
    expected = [BlockOrder(4), BlockOrder(4), BlockOrder(4, drop=True), BlockOrder(0)]
    assert [thread.orders for thread in threads] == [expected, expected]


def test_a_last_block_that_was_dropped_is_reported_with_the_stop():
    with paced({"traces": [1]}) as (lane, (thread,)):
        lane.run_block(4, soon())
    assert thread.orders == [BlockOrder(4), BlockOrder(0, drop=True)]


def test_a_program_that_traces_on_is_measured_so():
    with paced({"traces": [1] * (LATE_TRACES + 2)}) as (lane, (thread,)):
        dropped = []
        for _ in range(LATE_TRACES + 2):
            lane.run_block(4, soon())
            dropped.append(lane.was_dropped)
    assert dropped == [True] * LATE_TRACES + [False, False]
    assert sum(order.drop for order in thread.orders) == LATE_TRACES


def test_traces_of_the_warm_up_are_known_from_the_start():
    with paced({}, {}) as (lane, _threads):
        assert lane.traces == 2
        lane.run_block(1, soon())
        assert not lane.was_dropped


def test_a_rank_that_does_not_come_is_named():
    with made() as pacer:
        here = Paced(pacer.address, 1)
        with pytest.raises(PacingError, match=r"rank\(s\) 0, 2 were not warm before the deadline"):
            # The one that is there is taken at once.
            pacer.accept(3, time.monotonic() + 0.2)
        here.close()


def test_a_stranger_that_says_nothing_does_not_hold_the_launch_up():
    with made() as pacer, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(pacer.address)
        with pytest.raises(PacingError, match="did not answer before the deadline"):
            pacer.accept(1, time.monotonic() + 0.2)


def test_a_rank_that_leaves_ends_the_block():
    with made() as pacer:
        rank = Paced(pacer.address, 0)
        lane = pacer.accept(1, soon())
        rank.close()
        with pytest.raises(PacingError, match="a rank closed its connection"):
            lane.run_block(1, soon())
        lane.stop()  # says nothing more


def test_a_rank_that_does_not_finish_before_the_deadline_ends_the_block():
    with made() as pacer:
        rank = Paced(pacer.address, 0)
        lane = pacer.accept(1, soon())
        with pytest.raises(PacingError, match="did not answer before the deadline"):
            lane.run_block(1, PAST)
        rank.close()


def test_a_rank_whose_controller_is_gone_stops():
    with made() as pacer:
        rank = Paced(pacer.address, 0)
        pacer.accept(1, soon())
    assert rank.order() == BlockOrder(0)
    rank.done(1.0, 1)  # nobody listens, and nothing is raised
    assert rank.order() == BlockOrder(0)
    rank.close()


def test_a_pacer_that_is_closed_wakes_up_who_waits():
    pacer = made()
    raised = []

    def wait():
        try:
            pacer.accept(1, soon())
        except PacingError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    pacer.close()
    thread.join(30)
    assert raised == ["the launch ended before its ranks were warm"]


@pytest.fixture
def uncollected():
    """Let the collector free nothing during a test.

    What earlier tests have left may have open files. To collect it before the test may take a minute, if there is an
    iterator of a dataset among it (``suites/repros/iterator_waits_for_autotune.py``).
    """
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_no_folder_and_no_open_file_is_left():
    before = len(os.listdir("/proc/self/fd"))
    with paced({}, {}) as (lane, threads):
        folder = Path(threads[0].paced._line._socket.getpeername()).parent
        assert folder.is_dir()
        lane.run_block(1, soon())
    assert not folder.exists()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_socket_lies_where_it_is_told_unless_the_path_would_be_too_long(tmp_path):
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        with made(short) as pacer:
            assert Path(pacer.address).parent.parent == short
        assert not list(short.iterdir())
    finally:
        short.rmdir()
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with made(long) as pacer:
        Paced(pacer.address, 0).close()
        assert not list(long.iterdir())


def test_during_a_long_block_something_else_can_be_done_now_and_then(monkeypatch):
    monkeypatch.setattr(pacing, "RESUME_EVERY", 0.01)
    called = threading.Event()
    with made() as pacer:
        rank = Paced(pacer.address, 0)
        lane = pacer.accept(1, soon())

        def slow():
            rank.order()
            assert called.wait(30)
            rank.done(2.0, 0)

        thread = threading.Thread(target=slow)
        thread.start()
        assert lane.run_block(1, soon(), called.set) == [2.0]
        thread.join()
        rank.close()


def test_a_canary_is_timed_between_blocks():
    with paced({"seconds": 3.0}, {"seconds": 5.0}) as (lane, threads):
        assert lane.run_block(20, soon()) == [3.0, 5.0]
        assert lane.run_canary(4, soon()) == 5.0
        assert lane.run_block(7, soon()) == [3.0, 5.0]
    for thread in threads:
        assert thread.orders[1] == BlockOrder(0, canary=4)
        assert [order.steps for order in thread.orders] == [20, 0, 7, 0]


@pytest.mark.parametrize(("host", "stopped"), [(None, True), ("another 12345678", False)])
def test_only_processes_of_this_machine_are_stopped(monkeypatch, host, stopped):
    sent = []
    with made() as pacer:
        if host is not None:
            monkeypatch.setattr(pacing, "host_identity", lambda: host)
        rank = Paced(pacer.address, 0)
        monkeypatch.undo()
        monkeypatch.setattr(os, "killpg", lambda process, _number: sent.append(process))
        lane = pacer.accept(1, soon())
        lane.pause()
        lane.resume()
        rank.close()
    assert sent == ([os.getpid()] * 2 if stopped else [])


def test_a_paused_rank_breathes(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "killpg", lambda process, number: sent.append((process, signal.Signals(number).name)))
    lane = Lane({}, processes=[7])
    lane.resume_briefly()
    assert sent == []
    lane.pause()
    lane.resume_briefly()
    lane.resume()
    assert sent == [(7, "SIGSTOP"), (7, "SIGCONT"), (7, "SIGSTOP"), (7, "SIGCONT")]


def test_a_paused_rank_stands_still_with_what_it_started_until_it_is_resumed():
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        lane = Lane({}, processes=[process.pid])
        lane.pause()
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        lane.close()
        assert os.WIFCONTINUED(os.waitpid(process.pid, os.WCONTINUED)[1])
        process.kill()
    lane.pause()  # one that is gone by now is no error
