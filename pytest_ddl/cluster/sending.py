"""Send requests to workers without waiting for a worker that does not read."""

from __future__ import annotations

import contextlib
import threading

from pytest_ddl.cluster.launcher import WorkerProcess

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
