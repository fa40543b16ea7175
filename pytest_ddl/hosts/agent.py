"""Run the workers of one host. The agent has a local launcher there, and reports what happens to the workers.

The controller starts it through execnet, which gives it a channel. Both sides send tuples of a name and its values.

===============  ======================================  =============================================================
from the          message                                 meaning
===============  ======================================  =============================================================
controller       ``launch, request, numbers, environ,    fork workers that have these numbers, some with variables of
                 own``                                   their own
controller       ``lease, request, count``               lease ports; ``release, request`` gives them back
controller       ``start, environ, limit, warm``         start the local launcher; the others below need it
controller       ``ask, request, function, arguments``   call a function, such as those of ``hosts.questions``
controller       ``send, number, data``                  send a request to a worker
controller       ``signal, number, signal``              send a signal to a worker; ``drop, number`` ends it
agent            ``done, request, value``                answer; ``refused, request, text`` if it is an error
agent            ``reply, number, data, last``           a part of a worker's reply; ``closed, number`` is the end
agent            ``output, number, out, err``            what a worker has written; also ``stacks, number, text``
agent            ``exited, number, status``              a worker has ended; ``stopped, number`` if it is suspended
controller       ``place, places``                       use a copy of the user's files, in workers from now on
controller       ``offer, path``                         accept connections of ranks for a socket of the controller
agent            ``tunnel, number, path``                a rank has connected to this socket
agent            ``imported, digests``                   files of the user that a worker has imported, by path
either           ``through, number, data``               bytes of such a connection; none are its end
agent            ``failed, text``                        the local launcher has ended
either           ``alive``                               nothing new
===============  ======================================  =============================================================

The output that a worker has written before a reply is sent before the reply, and so are the files that it has imported.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_ddl.cluster import session_folder
from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.local_process import LocalProcess
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.relocating import PLACES, FolderPlaces
from pytest_ddl.cluster.resources import PortLease
from pytest_ddl.cluster.sending import send
from pytest_ddl.cluster.state import user_files
from pytest_ddl.cluster.state.user_files import DOORS
from pytest_ddl.cluster.warm.servers import WarmZygotes
from pytest_ddl.hosts import copies, questions
from pytest_ddl.hosts.tunnels import Tunnels

BEAT = 1.0
"""Seconds between signs of life."""
SILENCE = 30.0
"""Seconds without a sign of life after which the other side counts as lost. A closed stream is noticed at once."""
END_WAIT = 2.0
"""Maximum seconds to end the workers once the controller is gone. Then the agent ends, and the zygote kills them."""
ORPHANED = 120.0
"""Seconds without a message of the controller after which the agent ends. An engine may keep the stream open after its
command was killed. Longer than :data:`SILENCE`, because a large message may be on its way."""
PIECE = 1 << 20
"""Maximum number of bytes of one message. A long reply must not keep those of other workers waiting."""
ATTENTION = 1.0
"""Seconds after a signal to a worker in which its stacks may appear."""
_IDLE, _ATTENTIVE = 0.2, 0.01
"""Seconds between looks at the workers' output and stacks."""
_SOCKETS = "doors"
"""Folder of the sockets that stand for those of the controller, and of the lists of imported files."""
_HOST_VARIABLES = ("HOSTNAME", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES")
"""Variables of the environment that describe a host. A worker gets those of its own host."""
_ENGINE_PREFIXES = ("SLURM_", "SLURMD_", "PMI_", "PMIX_", "OMPI_", "PRTE_")
"""Beginnings of the variables in which an engine describes its job. The ranks of a cluster have other numbers, and a
program that finds the engine's, such as ``SlurmClusterResolver``, would take the job for the cluster."""


class Agent:
    """Agent of one host. :meth:`run` serves the controller until its channel closes."""

    def __init__(self, channel: Any) -> None:
        """Prepare to serve the controller.

        :param channel: channel of execnet to the controller.
        """
        self._channel = channel
        self._inbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, LocalProcess] = {}
        self._sent: dict[int, tuple[int, int]] = {}
        """Number of bytes of stdout and stderr that were passed on, by number of the worker."""
        self._leases: dict[int, PortLease] = {}
        self._attentive_until = 0.0
        self._heard = time.monotonic()
        self._ended = threading.Event()
        self._last_resort = threading.Timer(END_WAIT, os._exit, [1])
        """End of this process if its main thread waits for the import of TensorFlow. The zygote then ends too."""
        self._last_resort.daemon = True
        folder, self._lock = session_folder.make()
        self._folder = Path(folder)
        (self._folder / _SOCKETS).mkdir()
        self._launcher: LocalLauncher | None = None
        self._tunnels = Tunnels(self._tell)
        self._places: FolderPlaces | None = None

    def _environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for workers on this host, with a new folder for temporary files."""
        mine = {name: os.environ[name] for name in _HOST_VARIABLES if name in os.environ}
        left_out = (*_HOST_VARIABLES, *(name for name in environ if name.startswith(_ENGINE_PREFIXES)))
        kept = {name: value for name, value in environ.items() if name not in left_out}
        own = {"TMPDIR": tempfile.mkdtemp(dir=self._folder), DOORS: str(self._folder / _SOCKETS)}
        if self._places is not None:
            # Caches and packages of the user keep their places, also if the project is the home folder.
            home = {name: value for name, value in kept.items() if name == "HOME"}
            kept = {**{name: self._places.text_for_rank(value) for name, value in kept.items()}, **home}
            own[PLACES] = self._places.in_words()
        return {**kept, **mine, **own}

    def run(self) -> None:
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._channel.setcallback(self._take, endmarker=None)
        threading.Thread(target=self._beat, name="ddl-beat", daemon=True).start()
        # Engines end a job by this signal first. The agent then leaves no files.
        signal.signal(signal.SIGTERM, lambda *_: self._take(None))
        try:
            while not self._ended.is_set():
                attentive = time.monotonic() < self._attentive_until
                self._selector.select(_ATTENTIVE if attentive else _IDLE)
                self._serve()
        except (LaunchError, OSError) as error:
            self._tell("failed", str(error))
        finally:
            self._close()

    def _serve(self) -> None:
        """Carry out the messages that have arrived, and pass on the news of the workers."""
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        with contextlib.suppress(queue.Empty):
            while (message := self._inbox.get_nowait()) is not None:
                name, *values = message
                getattr(self, f"_on_{name}")(*values)
        if self._launcher is not None:
            self._launcher.poll()
        for number in list(self._workers):
            self._pass_on(number)

    def _take(self, message: tuple[Any, ...] | None) -> None:
        """Take a message in the thread that reads the channel. ``None`` is its end."""
        self._heard = time.monotonic()
        if message is None and not self._ended.is_set():
            self._ended.set()
            self._last_resort.start()
        self._inbox.put(message)
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"x")

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            self._tell("alive")
            if time.monotonic() - self._heard > ORPHANED:
                self._take(None)

    def _tell(self, *message: Any) -> None:
        # If the controller is gone, the end of the channel says so.
        with contextlib.suppress(OSError):
            self._channel.send(message)

    def _on_alive(self) -> None:
        pass

    def _on_start(self, environ: dict[str, str], start_timeout: float, warm: bool) -> None:
        own = self._environ(environ)
        # Nobody has asked for a server that stays on this host, so the agent leaves none.
        source = WarmZygotes(leaves=False) if warm else None
        self._launcher = LocalLauncher(own, self._folder, shared=True, start_timeout=start_timeout, warm=source)
        self._selector.register(self._launcher.fileno(), selectors.EVENT_READ)

    def _on_place(self, places: str) -> None:
        self._places = FolderPlaces.of({PLACES: places})

    def _on_offer(self, path: str) -> None:
        self._tunnels.offer(self._folder / _SOCKETS, path)

    def _on_through(self, number: int, data: bytes) -> None:
        self._tunnels.through(number, data)

    def _on_launch(
        self, request: int, numbers: list[int], environ: dict[str, str], own: dict[int, dict[str, str]]
    ) -> None:
        self._answer(request, lambda: self._launch(numbers, environ, own))

    def _launch(self, numbers: list[int], environ: dict[str, str], own: dict[int, dict[str, str]]) -> list[int]:
        assert self._launcher is not None
        given = self._environ(environ)
        # A zygote forks workers together that have the same environment.
        groups = [([number], {**given, **own[number]}) for number in numbers] if own else [(numbers, given)]
        started = []
        for group, values in groups:
            workers = self._launcher.launch(PortLease(0), group, values)
            # At once: if a later group cannot be started, the controller drops these by their numbers.
            for number, worker in zip(group, workers, strict=True):
                self._workers[number] = worker
                self._sent[number] = (0, 0)
                self._selector.register(worker.fileno(), selectors.EVENT_READ)
            started += workers
        return [worker.pid for worker in started]

    def _on_lease(self, request: int, count: int) -> None:
        def lease() -> list[int]:
            self._leases[request] = PortLease(count)
            return list(self._leases[request].ports)

        self._answer(request, lease)

    def _on_release(self, request: int) -> None:
        lease = self._leases.pop(request, None)
        if lease is not None:
            lease.release()

    def _on_ask(self, request: int, question: str, arguments: list[Any]) -> None:
        # In a thread, because a connection to another host may take seconds.
        def ask() -> None:
            self._answer(request, lambda: questions.function_of(question)(*arguments))

        threading.Thread(target=ask, name="ddl-question", daemon=True).start()

    def _answer(self, request: int, action: Callable[[], Any]) -> None:
        try:
            value = action()
        except Exception as error:
            # Also an error of the question itself, such as one that another version does not know: without an answer,
            # the controller would wait until its deadline.
            known = isinstance(error, (LaunchError, OSError))
            self._tell("refused", request, str(error) if known else f"{type(error).__name__}: {error}")
            if self._launcher is not None and self._launcher.ended:
                raise
        else:
            self._tell("done", request, value)

    def _on_send(self, number: int, data: bytes) -> None:
        if number in self._workers:
            send(self._workers[number], data)

    def _on_signal(self, number: int, which: int) -> None:
        if number in self._workers:
            self._workers[number].signal(which)
            self._attentive_until = time.monotonic() + ATTENTION
            if which == signal.SIGSTOP:
                self._tell("stopped", number)

    def _on_drop(self, number: int) -> None:
        if number in self._workers:
            self._workers[number].signal(signal.SIGKILL)
            self._forget(number)

    def _forget(self, number: int) -> None:
        worker = self._workers.pop(number)
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.fileno())
        worker.close()

    def _pass_on(self, number: int) -> None:
        worker = self._workers[number]
        self._pass_on_output(number)
        if stacks := worker.read_stacks():
            self._tell("stacks", number, self._places.text_of_rank(stacks) if self._places else stacks)
        if worker.fileno() in self._selector.get_map():
            self._pass_on_replies(number)
        if worker.exit_status is not None:
            self._pass_on_output(number)
            self._tell("exited", number, worker.exit_status)
            self._forget(number)

    def _pass_on_replies(self, number: int) -> None:
        worker = self._workers[number]
        try:
            while True:
                reply = worker.receive()
                self._pass_on_output(number)
                self._pass_on_imports(worker.pid)
                for start in range(0, len(reply), PIECE):
                    self._tell("reply", number, reply[start : start + PIECE], start + PIECE >= len(reply))
        except BlockingIOError:
            pass
        except (EOFError, OSError):
            self._selector.unregister(worker.fileno())
            self._pass_on_output(number)
            self._tell("closed", number)

    def _pass_on_imports(self, pid: int) -> None:
        paths = user_files.take(self._folder / _SOCKETS, pid)
        if paths:
            digests = {path: questions.digest_of(path) for path in paths}
            of_rank = self._places.text_of_rank if self._places is not None else str
            self._tell("imported", {of_rank(path): digest for path, digest in digests.items()})

    def _pass_on_output(self, number: int) -> None:
        worker, sent = self._workers[number], self._sent[number]
        news = [_read(fd, start) for fd, start in zip(worker.files, sent, strict=True)]
        while any(news):
            self._sent[number] = sent = (sent[0] + len(news[0]), sent[1] + len(news[1]))
            self._tell("output", number, *(map(self._places.output_of_rank, news) if self._places else news))
            news = [_read(fd, start) for fd, start in zip(worker.files, sent, strict=True)]

    def _close(self) -> None:
        # From here on, nothing waits for long. An end in the middle would leave files.
        self._last_resort.cancel()
        with contextlib.suppress(LaunchError):
            for worker in self._workers.values():
                worker.signal(signal.SIGKILL)
        for number in list(self._workers):
            self._forget(number)
        for lease in self._leases.values():
            lease.release()
        self._tunnels.close()
        if self._launcher is not None:
            self._launcher.close()
        copies.close()
        os.close(self._lock)
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(fd: int, start: int) -> bytes:
    with contextlib.suppress(OSError):
        return os.pread(fd, PIECE, start)
    return b""
