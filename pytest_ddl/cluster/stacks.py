"""Read the Python stacks of running worker processes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pytest_ddl.cluster.launcher import WorkerProcess
from pytest_ddl.cluster.worker import STACKS_SIGNAL

STACKS_WAIT = 0.3
"""Seconds to wait for a rank's stacks. faulthandler writes them within milliseconds."""


def stacks_of(processes: Mapping[int, WorkerProcess]) -> dict[int, str]:
    """Return the stacks of all threads of some processes, by rank."""
    for process in processes.values():
        process.read_stacks()
        process.signal(STACKS_SIGNAL)
    found = dict.fromkeys(processes, "")
    deadline = time.monotonic() + STACKS_WAIT
    quiet = 0
    # faulthandler does not signal its end, so stop when all ranks have written and no new text arrives.
    while time.monotonic() < deadline and quiet < 3:
        time.sleep(0.01)
        news = {rank: process.read_stacks() for rank, process in processes.items()}
        for rank, text in news.items():
            found[rank] += text
        quiet = quiet + 1 if all(found.values()) and not any(news.values()) else 0
    return {rank: text or "(no stacks: the process is suspended or gone)" for rank, text in found.items()}
