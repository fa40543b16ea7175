"""Processes that a command starts: ended together, with all that they have started, whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TAG = "DDL_STARTED_BY"
"""Environment variable that marks them all, those that left their process group included."""
GRACE = 3.0
"""Seconds that a process has for ending its own in order."""
_PR_SET_PDEATHSIG = 1


class Processes:
    """A context manager: leaving it ends them.

    :param tag: a text that nothing else on this machine has.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        log: Path | None = None,
        *,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own: a Ctrl-C is for the command, which ends it in order.

        :param log: the file for what it prints, which is shown by default.
        :param stdin: as of :class:`subprocess.Popen`.
        """
        with log.open("ab") if log is not None else contextlib.nullcontext() as output:
            process = subprocess.Popen(
                list(command),
                cwd=folder,
                env={**environ, TAG: self._tag},
                stdin=stdin,
                bufsize=0,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def pids(self) -> list[int]:
        """Those that live, descendants included."""
        return tagged(f"{TAG}={self._tag}")

    def end(self) -> None:
        """End them: in order where they do so soon, else by force."""
        try:
            self._ask_to_end()
        finally:
            self._kill()

    def _ask_to_end(self) -> None:
        for process in self._started:
            if process.stdin is not None:
                process.stdin.close()
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + GRACE
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def _kill(self) -> None:
        # What is started while others are ended is found at the next look.
        for _ in range(10):
            left = self.pids()
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            if not left:
                break
            time.sleep(0.05)
        for process in self._started:
            process.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            sys.exit(f"process {parent} has ended, which this one was started by")


def tagged(mark: str) -> list[int]:
    """Processes whose environment held ``NAME=value`` when they were started; empty where there is no /proc."""
    wanted, found = mark.encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        # Gone by now, or somebody else's.
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
