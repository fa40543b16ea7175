"""Run the warm server: a process that has imported TensorFlow, and forks the zygotes of later runs.

It must be possible to import this module with only the standard library. Like a zygote, the server never runs a
TensorFlow operation. A zygote that it forks belongs to the pytest process that asked for it, and ends with that process
as any other zygote does. The server itself ends after some idle time, or when it is asked to. It also ends when a file
that it has imported was changed, and another process therefore asks for a server with the same key.

Files in the server's folder, which only the user can open: ``KEY.socket``, ``KEY.log``, and ``KEY.json`` (the
manifest), which is written when the server is ready. :mod:`pytest_ddl.cluster.warm` reads them.

Wire format: one JSON object per line. Requests: ``fork`` (with two file descriptors attached: the zygote's connection
to its owner, and its log), ``status`` and ``stop``. Answers: ``forked``, ``ended`` and ``status``.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import tempfile
import time
from types import FrameType
from typing import Any, NoReturn

from pytest_ddl.cluster import strays, zygote
from pytest_ddl.cluster.network import join_network
from pytest_ddl.cluster.preload import PRELOAD, import_all

NUM_ZYGOTE_FDS = 2
SOFT_LIMITS = tuple(
    getattr(resource, name)
    for name in ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC")
    if hasattr(resource, name)
)
"""Limits of the pytest process that its zygote gets too."""


class WarmServer:
    """Event loop that accepts clients, forks zygotes for them, and reports the end of their zygotes."""

    def __init__(self, listener: socket.socket, idle: float) -> None:
        """Prepare to serve.

        :param idle: seconds without a zygote after which the server ends.
        """
        self._listener = listener
        self._idle = idle
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_write = socket.socketpair()
        for end in (self._wakeup, self._wakeup_write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        self._clients: set[zygote.Client] = set()
        self._zygotes: dict[int, zygote.Client] = {}
        """Running zygotes by pid, with the clients that asked for them."""
        self._runs = 0
        """Number of zygotes that were forked."""
        self._used = time.monotonic()
        """Time of the start, or of the end of the latest zygote."""
        self._stopped = False
        self._own_children = strays.children()
        # If a zygote is killed, a process that its workers have started in a new session becomes a child of the server.
        strays.adopt_orphans()

    def serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wakeup, selectors.EVENT_READ, None)
        while not self._stopped:
            events = self._selector.select(None if self._zygotes else self._left())
            if not events and not self._zygotes and not self._left():
                return
            for key, _mask in events:
                if key.fileobj is self._listener:
                    connection, _address = self._listener.accept()
                    self._add(connection)
                elif key.fileobj is self._wakeup:
                    self._reap()
                else:
                    self._handle(key.data)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopped = True

    def _left(self) -> float:
        """Return the seconds until the server ends if no run uses it."""
        return max(0.0, self._used + self._idle - time.monotonic())

    def _add(self, connection: socket.socket) -> None:
        if not _is_own_user(connection):
            connection.close()
            return
        client = zygote.Client(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _handle(self, client: zygote.Client) -> None:
        requests = client.read()
        if requests is None:
            self._drop(client)
            return
        for request in requests:
            if request["op"] == "fork":
                fds, client.fds = client.fds[:NUM_ZYGOTE_FDS], client.fds[NUM_ZYGOTE_FDS:]
                self._fork(client, request, fds)
            elif request["op"] == "status":
                status = {"runs": self._runs, "running": len(self._zygotes), "left": self._left()}
                client.send({"event": "status", **status})
            elif request["op"] == "stop":
                self._stopped = True

    def _drop(self, client: zygote.Client) -> None:
        self._selector.unregister(client.socket)
        self._clients.discard(client)
        client.socket.close()

    def _fork(self, client: zygote.Client, request: dict[str, Any], fds: list[int]) -> None:
        try:
            if len(fds) < NUM_ZYGOTE_FDS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = zygote.fork()
        except OSError:
            # The client starts a zygote itself, and reports why if that fails too.
            for fd in fds:
                os.close(fd)
            self._drop(client)
            return
        if pid == 0:
            with zygote.ends_after():
                self._become_zygote(request, fds)
        for fd in fds:
            os.close(fd)
        self._zygotes[pid] = client
        self._runs += 1
        client.send({"event": "forked", "pid": pid})

    def _become_zygote(self, request: dict[str, Any], fds: list[int]) -> NoReturn:
        # The same as for a zygote that is started: Ctrl-C in the terminal does not reach it.
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._selector.close()
        for end in (self._listener, self._wakeup, self._wakeup_write, *(client.socket for client in self._clients)):
            end.close()
        owner, log = fds
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(request["environ"])
        tempfile.tempdir = None
        os.chdir(request["directory"])
        os.umask(request["umask"])
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, request["cores"])
        for number, soft in zip(SOFT_LIMITS, request["limits"], strict=True):
            resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
        sys.path += [entry for entry in request["path"] if entry not in sys.path]
        join_network(request["network"])
        zygote.run(socket.socket(fileno=owner), request["socket"], PRELOAD, isolated=request["isolated"])
        os._exit(0)

    def _reap(self) -> None:
        for pid, status in zygote.reaped(self._wakeup):
            client = self._zygotes.pop(pid, None)
            if client is not None:
                self._used = time.monotonic()
                client.send({"event": "ended", "status": status})
        for orphan in strays.children() - self._zygotes.keys() - self._own_children:
            strays.kill(orphan)


def _is_own_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user. The folder's mode ensures it elsewhere too."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())


def imported_files() -> dict[str, list[int]]:
    """Return the files that this process has loaded, each with its ctime in nanoseconds and its size in bytes.

    The ctime changes with every change of a file, and a program cannot set it.
    """
    paths = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        paths |= {fields[5].strip() for line in maps if len(fields := line.split(maxsplit=5)) == 6}
    stamps = {}
    for path in sorted(paths):
        if os.path.isabs(path):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                stamps[path] = [status.st_ctime_ns, status.st_size]
    return stamps


def versions() -> dict[str, str]:
    """Return the versions of the imported packages by name."""
    packages = {name: sys.modules.get(name) for name in sorted(name.lstrip("?").partition(".")[0] for name in PRELOAD)}
    return {name: str(getattr(package, "__version__", "?")) for name, package in packages.items() if package}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", required=True, help="path of the server's files without their suffix")
    parser.add_argument("--idle", type=float, required=True)
    options = parser.parse_args()
    address, manifest = f"{options.base}.socket", f"{options.base}.json"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with zygote.short_path(address) as path, contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with zygote.short_path(address) as path:
        listener.bind(path)
    listener.listen(64)
    # The process that started this one waits for its end, and the server must outlive it without becoming a zombie.
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())
    mine = os.stat(address).st_ino
    started = os.stat(address).st_ctime_ns
    error: str | None = None
    try:
        error = import_all(PRELOAD)
        files = imported_files()
        if not error:
            changed = [path for path, (ctime, _size) in files.items() if ctime >= started]
            error = f"{changed[0]} was changed during the import" if changed else ""
        names = {name.partition(".")[0] for name in sys.modules} | {name.lstrip("?") for name in PRELOAD}
        facts = {
            "pid": os.getpid(),
            "error": error,
            "idle": options.idle,
            "files": files,
            "modules": sorted(names),
            "path": os.environ.get("PYTHONPATH", ""),
            "started": time.time(),
            "python": f"{sys.executable} ({sys.version.split()[0]})",
            "packages": versions(),
        }
        with open(f"{manifest}.new", "w") as file:
            json.dump(facts, file)
        os.rename(f"{manifest}.new", manifest)
        if not error:
            gc.collect()
            # The garbage collector does not touch frozen objects, so their memory pages stay shared.
            gc.freeze()
            WarmServer(listener, options.idle).serve()
    finally:
        # Manifest and log of a failed import stay, for the next run. Another server may have taken over the address.
        left = [address] if error else [manifest, f"{options.base}.log", address]
        with contextlib.suppress(OSError):
            if os.stat(address).st_ino == mine:
                for path in left:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)


if __name__ == "__main__":
    main()
