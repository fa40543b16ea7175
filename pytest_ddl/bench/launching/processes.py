"""Start processes for a command, and always end them together with everything that they started."""

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

from pytest_ddl.cluster import strays

TAG = "DDL_STARTED_BY"
"""Environment variable that marks these processes, including those that left their process group."""
GRACE = 3.0
"""Seconds that a process gets to end its own processes before it is killed."""
_PR_SET_PDEATHSIG = 1


class Processes:
    """Processes of one command; a context manager that ends them on exit.

    :param tag: a text that nothing else on this machine uses.
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
        """Start a process in its own session, so that Ctrl-C reaches only the command, which then ends the process.

        :param log: file for the output of the process; by default the output is shown.
        :param stdin: as for :class:`subprocess.Popen`.
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
        """Return the ids of the processes that are alive, including descendants."""
        return strays.tagged(self._tag, TAG)

    def end(self) -> None:
        """End all processes: first ask them to end, then kill those that are left after ``GRACE`` seconds."""
        try:
            self._ask_to_end()
        finally:
            strays.end_tagged(self._tag, TAG)
            for process in self._started:
                process.wait()

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

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent dies (Linux); exit if the parent is already gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            sys.exit(f"the process that started this one ({parent}) has ended")
