"""Start worker processes: the interface of launchers, and the local launcher, which forks workers from the zygote."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Protocol
from uuid import uuid4

import pytest_ddl
from pytest_ddl.cluster import strays
from pytest_ddl.cluster.obstacles import cannot_write, how_it_ended
from pytest_ddl.cluster.zygote import short_path

PRELOAD = (
    "tensorflow",
    "keras",
    "pytest",
    "cloudpickle",
    "?hypothesis",
    "pytest_ddl.cluster.rank_session",
    "pytest_ddl.equivalence.runs.remote",
    "pytest_ddl.cluster.process_state",
)
START_TIMEOUT = 120.0
"""Maximum seconds for importing TensorFlow and Keras. With a cold disk cache, this can take tens of seconds."""


_BOOTSTRAP = """
import importlib.util, sys
init, *path = {places}
sys.path[:] = [entry for entry in sys.path if entry]
sys.path += [entry for entry in path if entry and entry not in sys.path]
spec = importlib.util.spec_from_file_location("pytest_ddl", init)
sys.modules["pytest_ddl"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from pytest_ddl.cluster.zygote import main
main()
"""
"""Code that starts the zygote. It searches the interpreter's own path before the other entries of ``sys.path``.

pytest puts the folders of tests first, and a ``queue.py`` there would be imported instead of the standard module."""


class LaunchError(RuntimeError):
    """Worker processes cannot be started. The message states the reason."""


class WorkerProcess:
    """Worker process as the controller sees it: its control pipe, its output and its exit status."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self._control = theirs
        self._stacks, self._stacks_write = os.pipe()
        os.set_blocking(self._stacks, False)
        try:
            self.out: IO[bytes] = tempfile.TemporaryFile("ab+", prefix="pytest-ddl-")  # noqa: SIM115
            self.err: IO[bytes] = tempfile.TemporaryFile("ab+", prefix="pytest-ddl-")  # noqa: SIM115
        except OSError as error:
            raise LaunchError(cannot_write(error, tempfile.gettempdir())) from None
        self.pid = 0
        self.exit_status: int | None = None
        """Exit code, or minus the number of the signal that ended it. ``None`` while it runs."""

    @property
    def fds(self) -> list[int]:
        """File descriptors that the worker gets: control, stdout, stderr and stacks."""
        return [self._control.fileno(), self.out.fileno(), self.err.fileno(), self._stacks_write]

    def started(self, pid: int) -> None:
        """Close the worker's ends of the pipes in this process, so that this process notices when the worker ends."""
        self.pid = pid
        self._control.close()
        os.close(self._stacks_write)

    def read_stacks(self) -> str:
        """Return the text that faulthandler has written since the last call."""
        chunks = []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._stacks, 1 << 16):
                chunks.append(chunk)
        return b"".join(chunks).decode(errors="replace")

    def output(self, since: tuple[int, int] = (0, 0)) -> tuple[str, str]:
        """Return the output on stdout and stderr after these offsets."""
        return _tail(self.out, since[0]), _tail(self.err, since[1])

    def output_offsets(self) -> tuple[int, int]:
        """Return the present sizes of stdout and stderr."""
        return os.fstat(self.out.fileno()).st_size, os.fstat(self.err.fileno()).st_size

    def close(self) -> None:
        self.connection.close()
        os.close(self._stacks)
        self.out.close()
        self.err.close()


_MODULES = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
"""Last line of faulthandler's output. It is left out, because its kilobytes of names would hide the crash's reason."""


def _tail(file: IO[bytes], start: int) -> str:
    size = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), max(0, size - start), start).decode(errors="replace")
    return _MODULES.sub("", text)


class Launcher(Protocol):
    """Interface of a launcher, which starts processes that run :class:`pytest_ddl.cluster.worker.Worker`."""

    def launch(self, count: int, environ: Mapping[str, str]) -> list[WorkerProcess]:
        """Start ``count`` workers."""

    def signal(self, process: WorkerProcess, number: int) -> None:
        """Send a signal to a worker and to its process group, if the worker still runs."""

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when :meth:`poll` has something to read."""

    def poll(self, timeout: float = 0.0) -> None:
        """Set the ``exit_status`` of the workers that have ended.

        :raises LaunchError: if the process that starts workers has ended.
        """

    def close(self) -> None:
        """End all workers and the processes that started them."""


class LocalLauncher:
    """Launcher that forks workers from a zygote on this machine.

    It starts a zygote, or connects to the zygote of the xdist controller.
    """

    def __init__(
        self, environ: Mapping[str, str], folder: Path, address: str | None = None, *, isolated: bool = False
    ) -> None:
        """Start a zygote, or connect to the one at ``address``.

        :param folder: folder for the socket and the log of a started zygote. The zygote removes the folder when it
            ends, so that a killed pytest process leaves no files.
        :param isolated: give a started zygote and its workers their own network; see
            :mod:`pytest_ddl.cluster.network`.
        """
        self._buffer = b""
        self._ready = False
        self._error = ""
        """Reason why the zygote can never start a worker, for example that TensorFlow cannot be imported."""
        self.ended = ""
        """Description of how the zygote ended. Empty while it runs. After its end, a new launcher is needed."""
        self._tag = f"{os.getpid()}-{uuid4().hex}"
        self._ended: dict[int, int] = {}
        """Exit statuses of workers that ended before :meth:`launch` returned them, by pid."""
        self._running: dict[int, WorkerProcess] = {}
        self._forked: dict[int, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._next_id = 0
        if address is None:
            self._start(environ, folder, isolated)
        else:
            self.address = address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connect()

    def _start(self, environ: Mapping[str, str], folder: Path, isolated: bool) -> None:
        self.address = str(folder / "zygote")
        try:
            # A zygote removes the folder when it ends, but a zygote that was killed leaves its socket there.
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)
            self._log = open(folder / "zygote.log", "ab+")  # noqa: SIM115
        except OSError as error:
            raise LaunchError(cannot_write(error, folder)) from None
        self._socket, theirs = socket.socketpair()
        safe_path = ["-P"] if sys.version_info >= (3, 11) else []
        places = [os.path.abspath(pytest_ddl.__file__), *map(os.path.abspath, filter(None, sys.path))]
        command = [sys.executable, *safe_path, "-c", _BOOTSTRAP.format(places=places)]
        command += ["--owner-fd", str(theirs.fileno()), *(["--isolated"] if isolated else [])]
        self._process = subprocess.Popen(
            [*command, "--socket", self.address, "--preload", *PRELOAD],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Outside the terminal's foreground group, so that Ctrl-C reaches only pytest, which ends the workers.
            start_new_session=True,
            env={**environ, strays.TAG: self._tag},
        )
        theirs.close()

    def _connect(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                with short_path(self.address) as path:
                    self._socket.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise LaunchError(f"the zygote of the xdist controller does not answer at {self.address}") from None
                time.sleep(0.01)
            else:
                return

    def launch(self, count: int, environ: Mapping[str, str]) -> list[WorkerProcess]:
        """Fork workers with the given environment. The first call waits until the zygote has imported TensorFlow.

        :raises LaunchError: if the zygote has ended, cannot import TensorFlow or takes too long.
        """
        self._wait_until(lambda: self._ready, START_TIMEOUT, "importing TensorFlow")
        if self._error:
            raise LaunchError(self._error + self._log_tail())
        workers = {}
        for _ in range(count):
            worker = WorkerProcess()
            request = {
                "op": "fork",
                "id": self._next_id + 1,
                "environ": {**environ, strays.TAG: self._tag},
                "cwd": os.getcwd(),
                "path": sys.path,
                "argv": sys.argv[:1],
            }
            data = json.dumps(request).encode() + b"\n"
            # Counted before the request is sent: if a signal handler raises here, a later worker gets another number.
            self._next_id += 1
            workers[self._next_id] = worker
            try:
                sent = socket.send_fds(self._socket, [data], worker.fds)
                self._socket.sendall(data[sent:])
            except OSError:
                raise self._ended_error() from None
        self._wait_until(lambda: workers.keys() <= self._forked.keys(), START_TIMEOUT, "forking workers")
        for number, worker in workers.items():
            worker.started(self._forked.pop(number))
            self._running[worker.pid] = worker
            worker.exit_status = self._ended.pop(worker.pid, None)
        return list(workers.values())

    def signal(self, process: WorkerProcess, number: int) -> None:
        if process.exit_status is None:
            request = {"op": "signal", "pid": process.pid, "number": int(number)}
            with contextlib.suppress(OSError):
                self._socket.sendall(json.dumps(request).encode() + b"\n")

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self, timeout: float = 0.0) -> None:
        if self.ended:
            raise LaunchError(self.ended)
        self._socket.settimeout(max(timeout, 0.0))
        try:
            data = self._socket.recv(1 << 16)
        except (BlockingIOError, TimeoutError):
            return
        except ConnectionError:
            data = b""
        finally:
            self._socket.settimeout(None)
        if not data:
            raise self._ended_error()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if message["event"] == "ready":
            self._error = message["error"]
            self._ready = True
        elif message["event"] == "forked":
            self._forked[message["id"]] = message["pid"]
        elif message["event"] == "exited":
            worker = self._running.pop(message["pid"], None)
            if worker is not None:
                worker.exit_status = message["status"]
            else:
                self._ended[message["pid"]] = message["status"]

    def _ended_error(self) -> LaunchError:
        if not self.ended:
            how = ""
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=2)
                how = f": {how_it_ended(self._process.returncode)}"
            # The kernel has killed the workers together with the zygote, but not the processes that they had started.
            strays.end_tagged(self._tag)
            text = f"the zygote, from which worker processes are forked, has ended{how}"
            self.ended = f"{text}{self._log_tail()}"
        return LaunchError(self.ended)

    def _wait_until(self, done: Any, timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            if time.monotonic() > deadline:
                raise LaunchError(f"{what} took more than {timeout:.0f} s{self._log_tail()}")
            self.poll(0.5)

    def _log_tail(self) -> str:
        if self._process is None:
            return ""
        lines = _tail(self._log, 0).strip().splitlines()[-15:]
        return ":\n" + "\n".join(lines) if lines else ""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
        if self._process is not None:
            if not self._ready:
                # It is still importing and would notice the closed socket only afterwards. It has no workers yet.
                self._process.kill()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._log.close()
        strays.end_tagged(self._tag)
