"""Start workers on this machine: the local launcher forks them from the zygote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest_ddl
from pytest_ddl.cluster import session_folder, strays
from pytest_ddl.cluster.cgroups import usable_cores
from pytest_ddl.cluster.launcher import OneMachine, Reservation
from pytest_ddl.cluster.local_process import LocalProcess, tail
from pytest_ddl.cluster.obstacles import LONGER, LaunchError, cannot_start, cannot_write, how_it_ended, loopback_problem
from pytest_ddl.cluster.preload import PRELOAD
from pytest_ddl.cluster.resources import Ledger, PortLease
from pytest_ddl.cluster.zygote import short_path
from pytest_ddl.strategies.spec import Topology

CPU_SLOTS_PER_CORE = 2
"""Maximum number of ranks per core that run at once. A rank that traces uses one core; one that waits uses none."""
START_TIMEOUT = 120.0
"""Maximum seconds for importing TensorFlow and Keras, by default. With a cold disk cache, this takes tens of them."""
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


class ZygoteProcess(Protocol):
    """Process of a zygote, as :class:`subprocess.Popen` shows it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def wait(self, timeout: float = ...) -> int | None: ...

    def kill(self) -> None: ...


class ZygoteSource(Protocol):
    """Interface of :class:`pytest_ddl.cluster.warm.servers.WarmZygotes`."""

    def fork(
        self, environ: Mapping[str, str], address: str, owner: socket.socket, log: int, *, isolated: bool
    ) -> ZygoteProcess | None:
        """Return a zygote that has imported TensorFlow, or ``None`` if it must be started.

        :param address: path of the Unix socket at which the zygote serves.
        :param owner: connection of the zygote to its owner. The caller closes it.
        :param log: file descriptor for what the zygote prints.
        :raises LaunchError: if the source cannot be used.
        """

    def leave(self) -> None:
        """Prepare a zygote for the next run, if this run needed one."""


class LocalLauncher(OneMachine):
    """Launcher that forks workers from a zygote on this machine.

    It starts a zygote, or connects to the zygote of the xdist controller.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        folder: Path,
        address: str | None = None,
        *,
        isolated: bool = False,
        shared: bool = False,
        warm: ZygoteSource | None = None,
        also: Sequence[str] = (),
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        """Start a zygote, or connect to the one at ``address``.

        :param folder: folder for the socket and the log of a started zygote, and for the locks of the ledger. The
            zygote removes the folder when it ends, so that a killed pytest process leaves no files.
        :param isolated: give a started zygote and its workers their own network; see
            :mod:`pytest_ddl.cluster.network`.
        :param shared: start the zygote in a folder of its own inside ``folder``, because other launchers use
            ``folder`` too.
        :param warm: where to get a zygote without starting one, if it has one that fits.
        :param also: modules that a started zygote imports, besides those that every worker needs.
        :param start_timeout: maximum seconds for importing TensorFlow, and for each later answer of the zygote.
        """
        self.start_timeout = start_timeout
        self.ledger = Ledger(folder, {"cpu": CPU_SLOTS_PER_CORE * max(int(usable_cores()), 2)})
        self._buffer = b""
        self._ready = False
        self._error = ""
        """Reason why the zygote can never start a worker, for example that TensorFlow cannot be imported."""
        self.ended = ""
        """Description of how the zygote ended. Empty while it runs. After its end, a new launcher is needed."""
        self._tag = f"{os.getpid()}-{uuid4().hex}"
        self._ended: dict[int, int] = {}
        """Exit statuses of workers that ended before :meth:`launch` returned them, by pid."""
        self._running: dict[int, LocalProcess] = {}
        self._forked: dict[int, int] = {}
        """Pids of forked workers that :meth:`launch` has not returned, by the number of their request."""
        self._refused: dict[int, str] = {}
        """Reasons why workers could not be forked, by the number of their request."""
        self._process: ZygoteProcess | None = None
        self._warm = warm
        self._also = also
        self._next_id = 0
        if address is None:
            self._start(environ, folder, isolated, shared)
        else:
            session_folder.mark(str(folder), self._tag)
            self.address = address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connect()

    def _start(self, environ: Mapping[str, str], folder: Path, isolated: bool, shared: bool) -> None:
        try:
            # A zygote removes the folder when it ends, but a zygote that was killed leaves its socket there.
            folder.mkdir(parents=True, exist_ok=True)
            session_folder.mark(str(folder), self._tag)
            folder = Path(tempfile.mkdtemp(prefix=session_folder.ZYGOTE_PREFIX, dir=folder)) if shared else folder
            self.address = str(folder / "zygote")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)
            self._log = open(folder / "zygote.log", "ab+")  # noqa: SIM115
        except OSError as error:
            raise LaunchError(cannot_write(error, folder)) from None
        environ = {**environ, strays.TAG: self._tag}
        try:
            self._socket, theirs = socket.socketpair()
            with theirs:
                if self._warm is not None:
                    log = self._log.fileno()
                    self._process = self._warm.fork(environ, self.address, theirs, log, isolated=isolated)
                self._process = self._process or self._start_cold(environ, theirs, isolated)
        except OSError as error:
            self._log.close()
            raise LaunchError(cannot_start(error)) from None

    def _start_cold(self, environ: Mapping[str, str], theirs: socket.socket, isolated: bool) -> subprocess.Popen[bytes]:
        safe_path = ["-P"] if sys.version_info >= (3, 11) else []
        places = [os.path.abspath(pytest_ddl.__file__), *map(os.path.abspath, filter(None, sys.path))]
        command = [sys.executable, *safe_path, "-c", _BOOTSTRAP.format(places=places)]
        command += ["--owner-fd", str(theirs.fileno()), *(["--isolated"] if isolated else [])]
        return subprocess.Popen(
            [*command, "--socket", self.address, "--preload", *self._also, *PRELOAD],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Outside the terminal's foreground group, so that Ctrl-C reaches only pytest, which ends the workers.
            start_new_session=True,
            env={**environ},
        )

    def _connect(self) -> None:
        deadline = time.monotonic() + self.start_timeout
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

    def reserve(self, topology: Topology) -> PortLease:
        if topology.ports and (problem := loopback_problem()):
            raise LaunchError(str(problem))
        return PortLease(topology.ports)

    def launch(self, reservation: Reservation, tasks: Sequence[int], environ: Mapping[str, str]) -> list[LocalProcess]:
        """Fork workers with the given environment. The first call waits until the zygote has imported TensorFlow.

        :raises LaunchError: if the zygote has ended, cannot import TensorFlow or takes too long.
        """
        self._wait_until(lambda: self._ready, "importing TensorFlow")
        if self._error:
            raise LaunchError(self._error + self._log_tail())
        with contextlib.ExitStack() as unless_started:
            workers: dict[int, LocalProcess] = {}
            for _ in tasks:
                worker = LocalProcess(self._signal, self._poll)
                unless_started.callback(worker.close)
                # Counted before the request is sent: if a signal handler raises here, a later worker gets another
                # number.
                self._next_id += 1
                workers[self._next_id] = worker
                self._request_fork(self._next_id, worker, environ)
            self._wait_until(lambda: workers.keys() <= self._forked.keys() | self._refused.keys(), "forking workers")
            pids = {number: self._forked.pop(number) for number in workers.keys() & self._forked.keys()}
            refused = [self._refused.pop(number) for number in workers.keys() & self._refused.keys()]
            if refused:
                # Those that were forked end, because their channels are closed.
                raise LaunchError(refused[0])
            unless_started.pop_all()
        for number, worker in workers.items():
            worker.started(pids[number])
            self._running[worker.pid] = worker
            worker.exit_status = self._ended.pop(worker.pid, None)
        return list(workers.values())

    def _request_fork(self, number: int, worker: LocalProcess, environ: Mapping[str, str]) -> None:
        request = {"op": "fork", "id": number, "environ": {**environ, strays.TAG: self._tag}}
        data = json.dumps(request).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [data], worker.fds)
            self._socket.sendall(data[sent:])
        except OSError:
            raise self._ended_error() from None

    def _signal(self, pid: int, number: int) -> None:
        request = {"op": "signal", "pid": pid, "number": int(number)}
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self) -> None:
        self._poll(0.0)

    def _poll(self, timeout: float) -> None:
        """Read the answers of the zygote. Wait at most ``timeout`` seconds for one."""
        if self.ended:
            raise LaunchError(self.ended)
        self._socket.settimeout(timeout)
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
        elif message["event"] == "refused":
            self._refused[message["id"]] = message["error"]
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
            self.ended = f"the zygote, from which worker processes are forked, has ended{how}{self._log_tail()}"
        return LaunchError(self.ended)

    def _wait_until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.start_timeout
        while not done():
            if time.monotonic() > deadline:
                raise self._late_error(f"{what} took more than {self.start_timeout:g} s")
            self._poll(0.5)

    def _late_error(self, what: str) -> LaunchError:
        """Return the error for a zygote that does not answer. Give up on it if it never will, so that it is replaced.

        An import may only be slow, for example from a network disk. The next test then waits for it again.
        """
        pid = None if self._process is None else self._process.pid
        suspended = pid is not None and strays.is_suspended(pid)
        then = "the zygote is suspended (SIGSTOP), and is killed" if suspended else LONGER
        text = f"{what}; {then}{self._log_tail()}"
        if suspended or self._ready:
            self.ended = text
            if self._process is not None:
                self._process.kill()
        return LaunchError(text)

    def _log_tail(self) -> str:
        if self._process is None:
            return ""
        lines = tail(self._log).strip().splitlines()[-15:]
        return ":\n" + "\n".join(lines) if lines else ""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
        if self._process is not None:
            if not self._ready or strays.is_suspended(self._process.pid):
                # If it is still importing, it would notice the closed socket only afterwards. It has no workers yet. If
                # it is suspended, the kernel kills its workers together with it.
                self._process.kill()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._log.close()
        strays.end_tagged(self._tag)
        if self._process is not None and self._warm is not None and self._ready and not self._error:
            self._warm.leave()
