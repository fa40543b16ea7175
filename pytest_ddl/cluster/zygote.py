"""Run the zygote: a process that has imported TensorFlow but never initialized it, and from which workers are forked.

It must be possible to import this module with only the standard library. The zygote must never run a TensorFlow
operation, because a process cannot be forked after TensorFlow's runtime has started its threads.

``multiprocessing``'s forkserver is not used. There is one per process, shared with the user's own code. It keeps the
environment of its first use, and it imports ``__main__`` (pytest) again in every child.

A process that is connected to the zygote owns the workers that it has forked through the connection. When a connection
closes for any reason, including ``kill -9`` of pytest, its workers are killed. When the connection of the process that
started the zygote closes, the zygote ends too.

Wire format: one JSON object per line. Requests: ``fork`` (with the worker's file descriptors attached: control, stdout,
stderr, stacks) and ``signal``. Answers: ``ready``, ``forked``, ``refused`` and ``exited``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import functools
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from pytest_ddl.cluster import session_folder, strays
from pytest_ddl.cluster.obstacles import cannot_start
from pytest_ddl.cluster.preload import choose_keras, import_all

NUM_WORKER_FDS = 4
_PR_SET_PDEATHSIG = 1
MAX_SOCKET_PATH = 104
"""Maximum bytes of a Unix socket's path on all systems, with the final zero byte. macOS allows 104, Linux 108."""
_FORK_FAILED = 70
"""Exit status (EX_SOFTWARE) of a forked process that did not reach the worker's own code."""


class Client:
    """Connection to the zygote, and the workers that are killed when it closes."""

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
        # If the client has closed the connection, the next read notices it. Nobody needs the answer then.
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")


class Zygote:
    """Event loop that accepts clients, forks and reaps workers, and informs the clients."""

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
        self._clients: dict[int, Client] = {}
        self._owner = self._add(owner)
        self._preload = preload
        self._isolated = isolated
        self._error = ""
        self._doomed: set[int] = set()
        """Pids of killed workers of closed connections that may not be reaped yet."""
        self._own_children: set[int] = set()
        """Pids of processes that an import has started. They are not orphans of a worker."""

    def serve(self, imported: Callable[[], None]) -> None:
        """Import the modules, call ``imported``, and serve until the owner's connection closes."""
        self._error = (_isolate() if self._isolated else "") or import_all(self._preload)
        imported()
        self._own_children = strays.children()
        # A process that a test starts in a new session outlives its worker and then becomes a child of the zygote.
        strays.adopt_orphans()
        gc.collect()
        # The garbage collector does not touch frozen objects, so their memory pages stay shared with the workers.
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

    def _add(self, connection: socket.socket) -> Client:
        client = Client(connection)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)
        return client

    def _handle(self, client: Client) -> None:
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

    def _drop(self, client: Client) -> None:
        """Close a client's connection and kill its workers. If the client is the owner, do so for all clients."""
        doomed = self._clients.values() if client is self._owner else [client]
        for one in list(doomed):
            for pid in one.workers:
                _signal_group(pid, signal.SIGKILL)
            self._doomed |= one.workers
            self._selector.unregister(one.socket)
            del self._clients[one.socket.fileno()]
            one.socket.close()

    def _reap(self) -> None:
        for pid, status in reaped(self._wakeup):
            # Processes that the worker itself started must not outlive it.
            _signal_group(pid, signal.SIGKILL)
            self._doomed.discard(pid)
            for client in self._clients.values():
                if pid in client.workers:
                    client.workers.discard(pid)
                    client.send({"event": "exited", "pid": pid, "status": status})
        workers = {worker for client in self._clients.values() for worker in client.workers}
        for orphan in strays.children() - workers - self._doomed - self._own_children:
            strays.kill(orphan)

    def _fork(self, client: Client, request: dict[str, Any], fds: list[int]) -> None:
        zygote = os.getpid()
        try:
            if len(fds) < NUM_WORKER_FDS:
                # The kernel leaves descriptors out if this process cannot open so many.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = fork()
        except OSError as error:
            # Only this request fails. The workers of other clients go on.
            for fd in fds:
                os.close(fd)
            client.send({"event": "refused", "id": request["id"], "error": cannot_start(error)})
            return
        if pid == 0:
            with ends_after():
                self._become_worker(zygote, request, fds)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):
            # The child does this too, so that the group exists before either process can send it a signal.
            os.setpgid(pid, pid)
        client.workers.add(pid)
        client.send({"event": "forked", "id": request["id"], "pid": pid})

    def _become_worker(self, zygote: int, request: dict[str, Any], fds: list[int]) -> NoReturn:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _die_with_parent(zygote)
        # While the worker runs, it adopts the daemons that it started. Afterwards the zygote adopts and ends them.
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
        # Line buffering, so that printed lines are not lost however the worker ends.
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(request["environ"])
        choose_keras()
        tempfile.tempdir = None  # makes tempfile use the worker's environment instead of the zygote's
        # All workers inherit the same state of the generators. Equal random numbers on all ranks would hide bugs.
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        from pytest_ddl.cluster.worker import Worker

        channel = Connection(control)
        os._exit(Worker(channel, channel, stacks).main())


def fork() -> int:
    """Fork this process as :func:`os.fork` does."""
    with warnings.catch_warnings():
        # Python 3.12 warns about other threads. They belong to NumPy, which restarts them after a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def reaped(wakeup: socket.socket) -> Iterator[tuple[int, int]]:
    """Read all signals from the wakeup socket, and yield the pid and the exit status of each child that has ended."""
    with contextlib.suppress(BlockingIOError):
        while wakeup.recv(4096):
            pass
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def ends_after() -> Iterator[None]:
    """End a forked process with an error, if the code in this context returns or raises instead of ending it."""
    try:
        yield
    except BaseException:
        faulthandler.dump_traceback()
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(_FORK_FAILED)


def _isolate() -> str:
    """Enter a network namespace, which all workers inherit. Return why it is refused, or an empty string."""
    from pytest_ddl.cluster.network import IsolationError, isolate

    try:
        isolate()
    except IsolationError as error:
        return f"--ddl-network=isolated: {error}"
    return ""


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a name of a Unix socket that is short enough for the kernel, which allows 107 characters."""
    if len(os.fsencode(path)) < MAX_SOCKET_PATH or sys.platform != "linux":
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies.

    This needs Linux. On other systems the worker ends when its control pipe closes.
    """
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
    run(socket.socket(fileno=options.owner_fd), options.socket, options.preload, isolated=options.isolated)


def run(owner: socket.socket, address: str, preload: Sequence[str], *, isolated: bool) -> None:
    """Serve at a Unix socket until the owner's connection closes. Then remove the folder of the socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(address) as path:
        listener.bind(path)
    listener.listen(64)
    # The owner may have been killed, so the zygote removes the folder.
    clean = functools.partial(session_folder.remove, os.path.dirname(address))
    try:
        with _ends_with(owner, clean) as disarm:
            Zygote(owner, listener, preload, isolated=isolated).serve(disarm)
    finally:
        clean()


@contextlib.contextmanager
def _ends_with(owner: socket.socket, clean: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """End this process when the owner's connection closes, even during an import, which takes many seconds.

    Yield a function that switches this off. Afterwards the event loop notices the end of the connection.
    """
    if not hasattr(fcntl, "F_SETOWN"):
        yield lambda: None
        return

    def look(*_signal: object) -> None:
        with contextlib.suppress(BlockingIOError):
            if not _peek(owner):
                clean()
                os._exit(0)

    def arm(flag: int) -> None:
        flags = fcntl.fcntl(owner, fcntl.F_GETFL) & ~os.O_ASYNC
        fcntl.fcntl(owner, fcntl.F_SETFL, flags | flag)

    def disarm() -> None:
        arm(0)
        signal.signal(signal.SIGIO, signal.SIG_DFL)

    signal.signal(signal.SIGIO, look)
    fcntl.fcntl(owner, fcntl.F_SETOWN, os.getpid())
    arm(os.O_ASYNC)
    # It may have closed before.
    look()
    yield disarm


def _peek(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except ConnectionError:
        return b""


if __name__ == "__main__":
    main()
