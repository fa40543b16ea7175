"""The zygote: a process with TensorFlow imported but never initialised, from which workers are forked.

It must stay importable without anything but the standard library, and it must never run a
TensorFlow operation: a runtime that has started its threads cannot be forked.

``multiprocessing``'s forkserver is not used: it is one per process and shared with the user's own
code, keeps the environment of its first use, and re-imports ``__main__`` (pytest) in every child.

Whoever holds a connection to the zygote owns the workers forked through it. When a connection
closes, for whatever reason (``kill -9`` of pytest included), its workers are killed; when the owner's
connection closes, the zygote ends too.

Wire format: one JSON object per line. Requests: ``fork`` (with the worker's file descriptors
attached: control, stdout, stderr, stacks), ``signal``. Answers: ``ready``, ``forked``, ``exited``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import random
import selectors
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pytest_ddl.cluster import strays

NUM_WORKER_FDS = 4
_PR_SET_PDEATHSIG = 1
MAX_SOCKET_PATH = 104
"""Bytes that a Unix socket's path may have everywhere: 104 on macOS, 108 on Linux, with the zero at the end."""
_FORK_FAILED = 70
"""EX_SOFTWARE: the worker's own code was never reached."""


class _Client:
    """One connection, and the workers that live and die with it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.buffer = b""
        self.fds: list[int] = []
        self.workers: set[int] = set()

    def read(self) -> list[dict[str, Any]] | None:
        """Return the requests that arrived, or ``None`` at the end of the connection."""
        try:
            data, fds, _flags, _address = socket.recv_fds(self.socket, 1 << 20, 4 * NUM_WORKER_FDS)
        except ConnectionError:
            return None
        self.fds += fds
        if not data:
            return None
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, message: dict[str, Any]) -> None:
        # A client that has gone is noticed by its own end of file; its answers have no reader.
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")


class Zygote:
    """The event loop: accepts clients, forks workers, reaps them, and tells their clients."""

    def __init__(
        self, owner: socket.socket, listener: socket.socket, preload: Sequence[str], *, isolated: bool = False
    ) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._wakeup, wakeup_write = socket.socketpair()
        self._fds_to_close = [owner, listener, self._wakeup, wakeup_write]
        for end in (self._wakeup, wakeup_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._clients: dict[int, _Client] = {}
        self._owner = self._add(owner)
        self._preload = preload
        self._isolated = isolated
        self._error = ""
        self._doomed: set[int] = set()
        """Workers of clients that have gone: killed, and perhaps not reaped yet."""
        self._own_children: set[int] = set()
        """What an import has started, which is nobody's orphan."""

    def serve(self) -> None:
        self._error = (_isolate() if self._isolated else "") or _import_all(self._preload)
        self._own_children = strays.children()
        # What a test puts into a session of its own outlives its worker, and is then a child of the zygote.
        strays.adopt_orphans()
        gc.collect()
        # Frozen objects are never touched by the collector, so their pages stay shared with the workers.
        gc.freeze()
        self._owner.send({"event": "ready", "error": self._error})
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wakeup, selectors.EVENT_READ, None)
        while self._owner.socket.fileno() >= 0:
            for key, _events in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _address = self._listener.accept()
                    self._add(connection).send({"event": "ready", "error": self._error})
                elif key.fileobj is self._wakeup:
                    self._reap()
                else:
                    self._handle(key.data)
        strays.end_children(self._own_children)

    def _add(self, connection: socket.socket) -> _Client:
        client = _Client(connection)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)
        return client

    def _handle(self, client: _Client) -> None:
        requests = client.read()
        if requests is None:
            self._drop(client)
            return
        for request in requests:
            if request["op"] == "fork":
                fds, client.fds = client.fds[:NUM_WORKER_FDS], client.fds[NUM_WORKER_FDS:]
                self._fork(client, request, fds)
            elif request["op"] == "signal" and request["pid"] in client.workers:
                _signal_group(request["pid"], request["number"])

    def _drop(self, client: _Client) -> None:
        """End a client: its workers are killed, and the zygote itself where it was the owner."""
        doomed = self._clients.values() if client is self._owner else [client]
        for one in list(doomed):
            for pid in one.workers:
                _signal_group(pid, signal.SIGKILL)
            self._doomed |= one.workers
            self._selector.unregister(one.socket)
            del self._clients[one.socket.fileno()]
            one.socket.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            # What the worker itself started must not outlive it.
            _signal_group(pid, signal.SIGKILL)
            self._doomed.discard(pid)
            for client in self._clients.values():
                if pid in client.workers:
                    client.workers.discard(pid)
                    client.send({"event": "exited", "pid": pid, "status": os.waitstatus_to_exitcode(status)})
        workers = {worker for client in self._clients.values() for worker in client.workers}
        for orphan in strays.children() - workers - self._doomed - self._own_children:
            strays.kill(orphan)

    def _fork(self, client: _Client, request: dict[str, Any], fds: list[int]) -> None:
        zygote = os.getpid()
        with warnings.catch_warnings():
            # Python 3.12 warns that other threads exist. They are NumPy's, which restarts them after a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                self._become_worker(zygote, request, fds)
            except BaseException:
                faulthandler.dump_traceback()
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(_FORK_FAILED)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):
            # Also done by the child: whoever comes first, the group exists before it is signalled.
            os.setpgid(pid, pid)
        client.workers.add(pid)
        client.send({"event": "forked", "id": request["id"], "pid": pid})

    def _become_worker(self, zygote: int, request: dict[str, Any], fds: list[int]) -> NoReturn:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _die_with_parent(zygote)
        # While the worker runs, a daemon that it started is its own; afterwards the zygote ends it.
        strays.adopt_orphans()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for client in self._clients.values():
            client.socket.close()
        for end in self._fds_to_close:
            end.close()
        control, out, err, stacks = fds
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
            os.close(source)
        # Line buffering, so that what was printed is there however the worker ends.
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(request["environ"])
        tempfile.tempdir = None  # looked up in this environment, and not in the zygote's
        os.chdir(request["cwd"])
        sys.path[:] = request["path"]
        sys.argv[:] = request["argv"]
        # All workers inherit one state of the generators: equal "random" numbers on all ranks would hide bugs.
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        from pytest_ddl.cluster.worker import Worker

        os._exit(Worker(control, stacks).main())


def _import_all(names: Sequence[str]) -> str:
    """Import the modules to preload; return why a required one failed, or an empty string.

    A name with a leading ``?`` may be missing.
    """
    for name in names:
        try:
            importlib.import_module(name.lstrip("?"))
        except ImportError as error:
            if not name.startswith("?"):
                return f"cannot import {name}: {error}{_shadowing(names)}"
        except Exception as error:
            return f"importing {name} failed: {type(error).__name__}: {error}{_shadowing(names)}"
    return ""


def _isolate() -> str:
    """Enter a network namespace, which all workers inherit; return why it is refused, or an empty string."""
    from pytest_ddl.cluster.network import IsolationError, isolate

    try:
        isolate()
    except IsolationError as error:
        return f"--ddl-network=isolated: {error}"
    return ""


def _shadowing(names: Sequence[str]) -> str:
    """Name files of the user that were imported instead of a standard or needed module, as part of a message."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    # Only a file of the module's own name: a package that is installed elsewhere has its folder.
    taken = {*sys.stdlib_module_names, *(name.lstrip("?").partition(".")[0] for name in names)} - {"pytest_ddl"}
    files = {name: str(getattr(sys.modules.get(name), "__file__", None) or "") for name in sorted(taken)}
    found = [
        f"{file} has the name of the module {name} and was imported instead of it: rename the file"
        for name, file in files.items()
        if os.path.basename(file) == f"{name}.py" and not file.startswith(installed)
    ]
    return "".join(f". {text}" for text in found)


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Give a name to a Unix socket that is short enough for the kernel, which allows 107 characters."""
    if len(os.fsencode(path)) < MAX_SOCKET_PATH or sys.platform != "linux":
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere the closed control pipe does)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_FORK_FAILED)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--owner-fd", type=int, required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--preload", nargs="*", default=[])
    parser.add_argument("--isolated", action="store_true")
    options = parser.parse_args()
    owner = socket.socket(fileno=options.owner_fd)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(options.socket) as path:
        listener.bind(path)
    listener.listen(64)
    try:
        Zygote(owner, listener, options.preload, isolated=options.isolated).serve()
    finally:
        # Not the owner's task: it may have been killed.
        shutil.rmtree(os.path.dirname(options.socket), ignore_errors=True)


if __name__ == "__main__":
    main()
