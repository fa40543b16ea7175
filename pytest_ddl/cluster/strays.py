"""Find and end processes that outlive the process that started them. This works only on Linux.

A process that a test starts in a new session leaves the process group of its worker. Signals to the group do not reach
it. The zygote uses this module, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

TAG = "_PYTEST_DDL_LAUNCHER"
"""Environment variable with a unique value for each launcher. Processes that its workers start inherit it."""
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 5.0
_READS = 5
"""Number of times to read an environment that is empty."""


def adopt_orphans() -> None:
    """Ask the kernel to make descendants of this process its children when their own parents end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return the pids of the children of this process."""
    own, pids = os.getpid(), set()
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            # A command's name may contain any character, so the fields are counted from its closing parenthesis.
            if int(file.read().rpartition(b")")[2].split()[1]) == own:
                pids.add(pid)
    return pids


def is_suspended(pid: int) -> bool:
    """Return whether a process is suspended by a signal such as SIGSTOP."""
    return state(pid) in ("t", "T")


def state(pid: int) -> str:
    """Return the state of a process as one letter, as in proc(5); empty if it does not exist."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        # The state follows the command's name in parentheses, and the name may contain parentheses.
        return file.read().rpartition(b")")[2].split()[0].decode()
    return ""


def tagged(value: str, name: str = TAG) -> list[int]:
    """Return the pids of other processes that were started with this value of a variable, without zombies."""
    entry = f"{name}={value}".encode()
    pids = []
    for pid in _pids():
        # The environment of another user's process is not readable.
        with contextlib.suppress(OSError):
            if pid != os.getpid() and entry in _environ(pid).split(b"\0"):
                pids.append(pid)
    return pids


def _environ(pid: int) -> bytes:
    """Return the environment with which a process was started; empty for a zombie.

    It is also empty for a moment while a process starts another program, and is then read again.
    """
    folder = Path(f"/proc/{pid}")
    for _ in range(_READS):
        data = (folder / "environ").read_bytes()
        if data or (folder / "statm").read_bytes().startswith(b"0 "):
            break
        time.sleep(0.002)
    return data


def kill_tagged(value: str, name: str = TAG) -> list[int]:
    """Kill the processes of :func:`tagged`, and return their pids."""
    pids = tagged(value, name)
    for pid in pids:
        kill(pid)
    return pids


def end_tagged(value: str, name: str = TAG) -> None:
    """Kill all processes with this tag. Repeat until none is left, because one may fork during the search."""
    deadline = time.monotonic() + _PATIENCE
    while kill_tagged(value, name) and time.monotonic() < deadline:
        time.sleep(0.01)


def end_children(spared: set[int]) -> None:
    """Kill and reap all children of this process, except the spared ones. Also kill orphans, which become children."""
    deadline = time.monotonic() + _PATIENCE
    while (left := children() - spared) and time.monotonic() < deadline:
        for pid in left:
            kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def kill(pid: int) -> None:
    """Kill one process if it exists and this process may signal it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []
