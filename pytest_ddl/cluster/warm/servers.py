"""Find, use, start and stop warm servers, from which the zygote of a run is forked within milliseconds.

A zygote that is started imports TensorFlow, which takes seconds. A warm server has done so before; see
:mod:`pytest_ddl.cluster.warm.server`. It is used only if it fits; see :mod:`pytest_ddl.cluster.warm.fitting`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest_ddl
from pytest_ddl.cluster import strays
from pytest_ddl.cluster.file_lock import locked
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.warm.fitting import Server, key_of
from pytest_ddl.cluster.warm.server import SOFT_LIMITS
from pytest_ddl.cluster.zygote import short_path

IDLE_MINUTES = 15.0
"""Minutes without a run after which a warm server ends."""
MAX_SERVERS = 3
"""Maximum number of warm servers of a user. Each holds about 250 MB. The one that was used longest ago ends first."""
_SUFFIXES = (".json", ".log", ".socket")
_ANSWER_TIMEOUT = 5.0
"""Maximum seconds until a server answers. A ready server needs milliseconds."""
_START_TIMEOUT = 120.0
_LOCK_TIMEOUT = 30.0
"""Maximum seconds to wait while other processes start or end servers, which takes some seconds."""


class WarmError(RuntimeError):
    """The folder of the warm servers cannot be used, or a server does not start. The message is one line."""


class WarmZygote:
    """Zygote that a warm server has forked. It has the methods of :class:`subprocess.Popen` that launchers use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float = math.inf) -> int | None:
        """Wait for the end of the zygote. Return its exit status, or ``None`` if the server has ended too.

        :raises subprocess.TimeoutExpired: if it runs longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            try:
                answer = _receive(self._connection, deadline)
            except TimeoutError:
                raise subprocess.TimeoutExpired("zygote", timeout) from None
            if answer is None:
                if not _exists(self.pid):
                    break
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("zygote", timeout)
                time.sleep(0.005)
            elif answer["event"] == "ended":
                self.returncode = answer["status"]
        self._connection.close()
        return self.returncode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, 9)


def find(key: str) -> Server | None:
    """Return the server with a key if one was started and became ready, or failed to. It may have ended since."""
    try:
        facts = json.loads((_folder() / f"{key}.json").read_text())
        return Server(key, **facts)
    except (OSError, ValueError, TypeError):
        return None


def servers() -> list[Server]:
    """Return the servers of this user that run and are ready, those used last at the end."""
    manifests = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
    known = [find(path.stem) for path in manifests]
    return [server for server in known if server is not None and not server.error and _connected(server.key)]


def use_of(server: Server) -> dict[str, Any] | None:
    """Ask a server for the numbers of ``runs`` that it has served and of those ``running`` now, and for its end.

    The end is in ``left`` seconds, if no run uses the server. Return ``None`` if it does not answer.
    """
    connection = _connect(server.key)
    if connection is None:
        return None
    with connection, contextlib.suppress(OSError):
        connection.sendall(b'{"op": "status"}\n')
        return _receive(connection, time.monotonic() + _ANSWER_TIMEOUT)
    return None


def fork(
    key: str, environ: Mapping[str, str], address: str, owner: socket.socket, log: int, *, isolated: bool
) -> WarmZygote | None:
    """Ask the server with this key for a zygote. Return ``None`` if there is none, or if a new import would differ.

    :param address: path of the Unix socket at which the zygote serves.
    :param owner: connection of the zygote to its owner. The caller closes it.
    :param log: file descriptor for what the zygote prints.
    """
    server = find(key)
    if server is None or server.error or server.misfit(environ):
        return None
    connection = _connect(key)
    if connection is None:
        return None
    request = {
        "op": "fork",
        "environ": dict(environ),
        "socket": address,
        "isolated": isolated,
        "directory": os.getcwd(),
        "umask": _umask(),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "limits": [resource.getrlimit(number)[0] for number in SOFT_LIMITS],
        "path": [os.path.abspath(entry) for entry in sys.path if entry],
        "network": f"/proc/{os.getpid()}/ns/net",
    }
    try:
        data = json.dumps(request).encode() + b"\n"
        connection.sendall(data[socket.send_fds(connection, [data], [owner.fileno(), log]) :])
        answer = _receive(connection, time.monotonic() + _ANSWER_TIMEOUT)
    except OSError:
        answer = None
    if answer is None:
        connection.close()
        return None
    with contextlib.suppress(OSError):
        os.utime(_folder() / f"{key}.json")
    return WarmZygote(connection, answer["pid"])


def start(key: str, environ: Mapping[str, str], idle_minutes: float = IDLE_MINUTES) -> None:
    """Start a server in the background, unless one with this key already runs and is current.

    :raises WarmError: if the folder of the servers cannot be used.
    """
    folder = _folder()
    with _lock(folder):
        known = find(key)
        if known is not None and not known.misfit(environ) and (known.error or _connected(key)):
            return
        if known is None and _connected(key):
            return  # it is still importing
        _stop(key)
        for path in folder.glob("*.socket"):
            if not _connected(path.stem):
                _remove(folder, path.stem)  # of a server that was killed
        for oldest in servers()[: 1 - MAX_SERVERS]:
            _stop(oldest.key)
        base = str(folder / key)
        _remove(folder, key)
        safe_path = ["-P"] if sys.version_info >= (3, 11) else []
        code = _BOOTSTRAP.format(init=os.path.abspath(pytest_ddl.__file__))
        with open(f"{base}.log", "wb") as log:
            subprocess.run(
                [sys.executable, *safe_path, "-c", code, "--base", base, "--idle", str(60 * idle_minutes)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                # The marks of this run's launcher would make it end the server together with its other processes.
                env={
                    **{name: value for name, value in environ.items() if name != strays.TAG},
                    "TMPDIR": tempfile.gettempdir(),
                },
                check=True,
            )


def leave(key: str, environ: Mapping[str, str]) -> None:
    """Start a server for the next run. If that fails, the next run starts as without one."""
    with contextlib.suppress(WarmError, OSError, subprocess.SubprocessError):
        start(key, environ)


def wait_until_ready(key: str) -> Server:
    """Wait until a started server is ready.

    :raises WarmError: if it does not become ready. The message has the reason.
    """
    deadline = time.monotonic() + _START_TIMEOUT
    while (server := find(key)) is None:
        if time.monotonic() > deadline:
            raise WarmError(f"no warm server after {_START_TIMEOUT:.0f} s; see {_folder() / key}.log")
        time.sleep(0.02)
    if server.error:
        raise WarmError(server.error)
    return server


def stop() -> int:
    """End all warm servers of this user. Runs that use one go on. Return the number of servers."""
    with _lock(_folder()) as folder:
        keys = {path.stem for path in folder.glob("*.socket")}
        stopped = sum(_stop(key) for key in keys)
        for path in folder.iterdir():
            if path.suffix in _SUFFIXES:
                path.unlink(missing_ok=True)
    return stopped


def _remove(folder: Path, key: str) -> None:
    for suffix in _SUFFIXES:
        (folder / f"{key}{suffix}").unlink(missing_ok=True)


_BOOTSTRAP = """
import importlib.util, sys
sys.path[:] = [entry for entry in sys.path if entry]
spec = importlib.util.spec_from_file_location("pytest_ddl", {init!r})
sys.modules["pytest_ddl"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from pytest_ddl.cluster.warm.server import main
main()
"""


def _folder() -> Path:
    """Return the folder of the servers, which only this user can open. Make it if it does not exist.

    :raises WarmError: if it belongs to somebody else, or if others can open it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(runtime if os.path.isdir(runtime) else "/tmp", f"pytest-ddl-warm-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise WarmError(f"cannot use the folder of warm servers {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise WarmError(
            f"the folder of warm servers {folder} is not a folder that only you can open: whoever can write there can "
            "run code as you. Remove it"
        )
    return folder


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[Path]:
    with locked(folder / "lock", _LOCK_TIMEOUT) as free:
        if not free:
            raise WarmError(f"another process keeps {folder}/lock; `fuser` shows which: end it if it is stuck")
        yield folder


def _connect(key: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(str(_folder() / f"{key}.socket")) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _connected(key: str) -> bool:
    connection = _connect(key)
    if connection is not None:
        connection.close()
    return connection is not None


def _stop(key: str) -> bool:
    """Ask a server to end. Return whether one was running."""
    connection = _connect(key)
    if connection is None:
        return False
    with connection, contextlib.suppress(OSError):
        connection.sendall(b'{"op": "stop"}\n')
        # The end of the connection shows that the server has ended.
        _receive(connection, time.monotonic() + _ANSWER_TIMEOUT)
    return True


def _receive(connection: socket.socket, deadline: float) -> dict[str, Any] | None:
    """Return the next answer, or ``None`` if the server has ended.

    :raises TimeoutError: at the deadline.
    """
    data = b""
    while not data.endswith(b"\n"):
        connection.settimeout(min(max(deadline - time.monotonic(), 0.001), _START_TIMEOUT))
        try:
            # One byte at a time, so that nothing of the next answer is read. Answers have about 30 bytes.
            chunk = connection.recv(1)
        except TimeoutError:
            raise
        except OSError:
            return None
        if not chunk:
            return None
        data += chunk
    answer: dict[str, Any] = json.loads(data)
    return answer


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class WarmZygotes:
    """Source of the zygote of one run. It implements :class:`pytest_ddl.cluster.local_launcher.ZygoteSource`."""

    def __init__(self, *, leaves: bool = True) -> None:
        """Prepare to find a server.

        :param leaves: leave a server for the next run, if this run finds none.
        """
        self._leaves = leaves
        self._leave: Callable[[], None] | None = None

    def fork(
        self, environ: Mapping[str, str], address: str, owner: socket.socket, log: int, *, isolated: bool
    ) -> WarmZygote | None:
        """Return a zygote of a warm server that fits, or ``None``.

        :raises LaunchError: if the folder of the servers cannot be used.
        """
        key = key_of(environ)
        try:
            forked = fork(key, environ, address, owner, log, isolated=isolated)
        except WarmError as error:
            raise LaunchError(f"--ddl-warm: {error}") from None
        if forked is None and self._leaves:
            self._leave = functools.partial(leave, key, environ)
        return forked

    def leave(self) -> None:
        """Start a server for the next run, if this run found none."""
        if self._leave is not None:
            self._leave()
