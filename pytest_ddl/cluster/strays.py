"""Find and end processes that outlive what started them. Linux only; elsewhere nothing is found.

A process that a test starts in a new session leaves its worker's process group, so signals to the group miss it.
Only the standard library is imported, as the zygote uses this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

TAG = "_PYTEST_DDL_LAUNCHER"
"""Environment variable with a value of its own for each launcher; what its workers start inherits it."""
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 5.0


def adopt_orphans() -> None:
    """Have the kernel make descendants of this process its children when their own parents end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return the pids of the children of this process."""
    own, found = os.getpid(), set()
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            # The name of a command may hold anything, so the fields are counted from its closing parenthesis.
            if int(file.read().rpartition(b")")[2].split()[1]) == own:
                found.add(pid)
    return found


def tagged(value: str) -> list[int]:
    """Return the pids of processes that were started with this value of :data:`TAG`, zombies left out."""
    entry = f"{TAG}={value}".encode()
    found = []
    for pid in _pids():
        # A zombie's environment is empty, another user's is not readable.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if pid != os.getpid() and entry in file.read().split(b"\0"):
                found.append(pid)
    return found


def end_tagged(value: str) -> None:
    """Kill all processes with this tag, again until none is left: one may fork while it is looked for."""
    deadline = time.monotonic() + _PATIENCE
    while (found := tagged(value)) and time.monotonic() < deadline:
        for pid in found:
            kill(pid)
        time.sleep(0.01)


def end_children(spared: set[int]) -> None:
    """Kill and reap all children of this process except those, and their orphans, which become children."""
    deadline = time.monotonic() + _PATIENCE
    while (left := children() - spared) and time.monotonic() < deadline:
        for pid in left:
            kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def kill(pid: int) -> None:
    """Kill one process, if it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []
