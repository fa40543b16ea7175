"""Launcher of a plugin: each worker is a subprocess, and its stdin and stdout are its channel.

The tests copy this file into a project. It uses only documented names of the plugin.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from pytest_ddl.cluster.launcher import Launcher, MakeLauncher, OneMachine, Reservation
from pytest_ddl.cluster.resources import Ledger, PortLease
from pytest_ddl.strategies.spec import Topology

COMMAND = [sys.executable, "-m", "pytest_ddl.cluster.stdio_worker"]


class PipeProcess:
    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile("ab+", dir=folder)  # noqa: SIM115
        self._seen = 0
        ours, theirs = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            COMMAND, stdin=ours[0], stdout=theirs[1], stderr=self._log, env=environ, cwd=folder, start_new_session=True
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._requests, self._replies = Connection(ours[1], readable=False), Connection(theirs[0], writable=False)

    def fileno(self) -> int:
        return self._replies.fileno()

    def send(self, data: bytes) -> None:
        self._requests.send_bytes(data)

    def receive(self) -> bytes:
        return self._replies.recv_bytes()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self, timeout: float = 0.0) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def read_stacks(self) -> str:
        text = self._read(self._seen)
        self._seen += len(text.encode())
        return text

    def output(self, since: tuple[int, int] = (0, 0)) -> tuple[str, str]:
        return "", self._read(since[1])

    def output_offsets(self) -> tuple[int, int]:
        return 0, os.fstat(self._log.fileno()).st_size

    def _read(self, start: int) -> str:
        return os.pread(self._log.fileno(), 1 << 30, start).decode()

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        for file in (self._requests, self._replies, self._log):
            file.close()


class PipeLauncher(OneMachine):
    address = None
    ended = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ledger = Ledger(folder, {"cpu": 4})

    def reserve(self, topology: Topology) -> PortLease:
        return PortLease(topology.ports)

    def launch(self, reservation: Reservation, tasks: Sequence[int], environ: Mapping[str, str]) -> list[PipeProcess]:
        return [PipeProcess(environ, self._folder) for _ in tasks]

    def fileno(self) -> None:
        return None

    def poll(self) -> None:
        pass

    def close(self) -> None:
        pass


def make(environ: dict[str, str], folder: Path, address: str | None) -> Launcher:
    return PipeLauncher(folder)


def pytest_ddl_register_launchers(launchers: dict[str, MakeLauncher]) -> None:
    launchers["pipes"] = make
