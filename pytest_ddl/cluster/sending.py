"""Send requests to workers without waiting for one that does not read, and read the Python stacks of running ones."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping

from pytest_ddl.cluster.launcher import WorkerProcess
from pytest_ddl.cluster.worker import STACKS_SIGNAL

_SMALL = 1 << 15
"""Number of bytes that a pipe or socket takes at once. Linux gives a pipe 64 KiB and a socket more."""


def send(process: WorkerProcess, data: bytes) -> None:
    """Send a request. Return at once, even if the worker is suspended or has ended.

    A thread sends a large request. If the worker never reads it, its answer is missing at the deadline, and the thread
    ends when the process is closed.
    """
    if len(data) <= _SMALL:
        _send(process, data)
    else:
        threading.Thread(target=_send, args=(process, data), name="ddl-send", daemon=True).start()


def _send(process: WorkerProcess, data: bytes) -> None:
    # If the worker has ended, whoever waits for the answer notices it. A closed channel may raise other exceptions too.
    with contextlib.suppress(OSError, ValueError, TypeError):
        process.send(data)


STACKS_WAIT = 0.3
"""Seconds to wait for a rank's stacks. faulthandler writes them within milliseconds."""


def stacks_of(processes: Mapping[int, WorkerProcess]) -> dict[int, str]:
    """Return the stacks of all threads of some processes, by rank."""
    for process in processes.values():
        process.read_stacks()
        process.signal(STACKS_SIGNAL)
    stacks = dict.fromkeys(processes, "")
    deadline = time.monotonic() + STACKS_WAIT
    quiet = 0
    # faulthandler does not signal its end, so stop when all ranks have written and no new text arrives.
    while time.monotonic() < deadline and quiet < 3:
        time.sleep(0.01)
        news = {rank: process.read_stacks() for rank, process in processes.items()}
        for rank, text in news.items():
            stacks[rank] += text
        quiet = quiet + 1 if all(stacks.values()) and not any(news.values()) else 0
    return {rank: text or "(no stacks: the process is suspended or gone)" for rank, text in stacks.items()}
