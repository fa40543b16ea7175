"""Connection of the controller to the agent of one host."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.cluster.obstacles import LaunchError, how_it_ended
from pytest_ddl.cluster.relocating import FolderPlaces
from pytest_ddl.hosts import questions, spawning
from pytest_ddl.hosts.agent import BEAT, SILENCE
from pytest_ddl.hosts.execnet_adapter import BOOTSTRAP_LINE, NotStartedError, open_gateway
from pytest_ddl.hosts.remote_process import Message, RemoteProcess
from pytest_ddl.hosts.transport import Host
from pytest_ddl.hosts.tunnels import Tunnels

if TYPE_CHECKING:
    import execnet

_END_WAIT = 0.5
"""Maximum seconds from the end of a connection to the exit status of the transport's command."""
_START_AGENT = """
import sys
path = channel.receive()
sys.path[:] = [entry for entry in sys.path if entry]
sys.path += [entry for entry in path if entry not in sys.path]
try:
    from pytest_ddl.hosts import agent
except ImportError as error:
    channel.send(("failed", f"{sys.executable} cannot import pytest_ddl ({error}): install pytest-ddl there"))
else:
    agent.Agent(channel).run()
"""
"""Source that execnet runs on the host. It searches that Python's own packages before the controller's folders."""


class HostLink:
    """Connection to the agent of one host. It is opened in a thread, and all methods may be used at once.

    Messages leave in another thread, so that no method waits for a host that does not read.
    """

    def __init__(
        self, host: Host, news: threading.Condition, group: execnet.Group, log: Path, on_lost: Callable[[], None]
    ) -> None:
        """Prepare a connection; :meth:`open` opens it.

        :param news: condition of all hosts. It is notified after each message from any host.
        :param log: file for what the transport's command and the agent print on stderr.
        :param on_lost: function that is called in any thread when the host is lost.
        """
        self.host, self.news = host, news
        self.sent: Mapping[str, str] = {}
        """Digest of each file that the host has as a copy, by its path here."""
        self.lost = ""
        """Why the host cannot be used any more. Empty while it can."""
        self._group, self._log = group, log
        self._is_open = False
        self._shown = ""
        """Command of the transport, for messages."""
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._answers: dict[int, tuple[bool, Any]] = {}
        """Whether a request was carried out, and its value or the reason why not, by number."""
        self._requests = 0
        self._processes: dict[int, RemoteProcess] = {}
        self._tunnels = Tunnels(self.tell)
        self._offered: set[str] = set()
        """Unix sockets of this process to which ranks of the host may connect."""
        self._heard = time.monotonic()
        self._closing = False
        self._on_lost = on_lost

    def open(self, command: Sequence[str]) -> None:
        """Start the transport's command and the agent, without waiting for them.

        :param command: command that runs a Python with :data:`BOOTSTRAP_LINE` on the host.
        """
        self._shown = shlex.join(command).replace(shlex.quote(BOOTSTRAP_LINE), "…")
        threading.Thread(target=self._run, args=[list(command)], name="ddl-host", daemon=True).start()

    def _run(self, command: list[str]) -> None:
        """Open the connection, and then send messages until :meth:`close`."""
        try:
            channel = self._connect(command)
        except Exception as error:
            self._lose(f"no connection to the host {self.host.name}: {self._why(error)}")
            return
        while True:
            try:
                message = self._outbox.get(timeout=BEAT)
            except queue.Empty:
                message = ("alive",)
            if message is None:
                break
            try:
                channel.send(message)
            except OSError:
                break
            except Exception as error:
                # Without this thread, nothing would say why the host does not answer any more.
                why = f"a message to the host {self.host.name} cannot be sent: {type(error).__name__}: {error}"
                with self.news:
                    self._lose(why)
                    self.news.notify_all()
                break
        with contextlib.suppress(OSError):
            channel.close()

    def _connect(self, command: list[str]) -> Any:
        line = [sys.executable, "-I", "-S", str(spawning.__file__)]
        gateway = open_gateway(self._group, self.host.name, [*line, str(self._log), json.dumps(command)])
        channel = gateway.remote_exec(_START_AGENT)
        channel.send([os.path.abspath(entry) for entry in sys.path if entry])
        self._heard = time.monotonic()
        self._is_open = True
        channel.setcallback(self._take, endmarker=None)
        return channel

    def _why(self, error: Exception) -> str:
        """Return what the transport's command has printed, or why there is no Python behind it, with the command."""
        said = self.said()
        if isinstance(error, NotStartedError) and error.printed:
            why = (
                f"its command has printed {error.printed.splitlines()[0]!r} on stdout before Python began, and that "
                "must carry nothing else; print such texts of a login shell only if it is interactive"
            )
            return f"{why}{f'; it also printed: {said}' if said else ''}; the command was `{self._shown}`"
        if said:
            return said
        if isinstance(error, NotStartedError):
            why = f"its Python did not answer: {how_it_ended(error.status)}"
        else:
            why = f"{type(error).__name__}: {error}"
        return f"{why}; the command was `{self._shown}`"

    def said(self) -> str:
        """Return the last lines that the transport's command and the agent have printed."""
        with contextlib.suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
            return "; ".join(line.strip() for line in lines[-5:] if line.strip())
        return ""

    def _take(self, message: Message | None) -> None:
        """Take a message of the agent, in the thread of execnet that reads the channel. ``None`` is its end."""
        with self.news:
            self._heard = time.monotonic()
            if message is None:
                self._lose(f"the connection to the host {self.host.name} has ended: {self._end()}")
                return
            name, *values = message
            if name in ("done", "refused"):
                self._answers[values[0]] = (name == "done", values[1])
            elif name == "failed":
                self._lose(f"on the host {self.host.name}, {values[0]}")
            elif name == "imported":
                self._compare(values[0])
            elif name == "tunnel" and values[1] in self._offered:
                self._tunnels.open(*values)
            elif name == "through":
                self._tunnels.through(*values)
            elif name not in ("alive", "tunnel") and values[0] in self._processes:
                getattr(self._processes[values[0]], f"on_{name}")(*values[1:])
            self.news.notify_all()

    def _compare(self, digests: Mapping[str, str]) -> None:
        """Give the host up if a rank there has imported a file of the user that is another one here."""
        for path, digest in digests.items():
            # A file that only the rank's host has may be made by the test.
            if (self.sent.get(path) or questions.digest_of(path)) not in ("", digest):
                self._lose(
                    f"the host {self.host.name} has another {path} than this one, so its ranks ran other code; add "
                    "--ddl-sync, copy it, or run from a folder that all hosts share"
                )

    def _end(self) -> str:
        """Return how the transport's command has ended, and what it has printed."""
        said, status = self.said(), None
        with contextlib.suppress(OSError):
            deadline = time.monotonic() + _END_WAIT
            # The log may be removed meanwhile.
            while (pid := self.pid) is not None and status is None and time.monotonic() < deadline:
                # Leave the process to be waited for by execnet.
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    time.sleep(0.01)
                else:
                    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return f"{how_it_ended(status)}{f'; it printed: {said}' if said else ''}"

    def check_silence(self) -> None:
        """Give the host up if nothing was heard of it for :data:`~pytest_ddl.hosts.agent.SILENCE` seconds."""
        if self._is_open and time.monotonic() - self._heard > SILENCE:
            self._lose(
                f"the host {self.host.name} has been silent for {SILENCE:.0f} s: it is down, suspended or cut off from "
                "the network"
            )

    def _lose(self, why: str) -> None:
        with self.news:
            if self.lost or self._closing:
                return
            self.lost = why
            # First, so that whoever waits for a process too hears the reason.
            self._on_lost()
            for process in self._processes.values():
                process.on_lost(why)
            self.news.notify_all()

    def tell(self, *message: Any) -> None:
        """Send a message. Return at once."""
        self._outbox.put(message)

    def place(self, places: FolderPlaces) -> None:
        """Let ranks of the host use a copy of the user's files."""
        self.tell("place", places.in_words())

    def offer(self, address: str) -> None:
        """Let ranks of the host connect to a Unix socket of this process; see :mod:`pytest_ddl.cluster.doors`."""
        with self.news:
            self._offered.add(address)
            self.tell("offer", address)

    def request(self, name: str, *values: Any) -> int:
        """Send a request. Return its number, for :meth:`answer`."""
        with self.news:
            self._requests += 1
            self.tell(name, self._requests, *values)
            return self._requests

    def answer(self, request: int, deadline: float, what: str) -> Any:
        """Wait for the answer to a request.

        :param deadline: in seconds of :func:`time.monotonic`.
        :param what: what was requested, for the message if there is no answer.
        :raises LaunchError: if the request was refused, the host is lost, or the deadline has passed.
        """
        with self.news:
            self.news.wait_for(lambda: request in self._answers or self.lost, max(deadline - time.monotonic(), 0.0))
            if request not in self._answers:
                said = self.said() or f"nothing came from its command `{self._shown}`"
                raise LaunchError(self.lost or f"{what} took too long on the host {self.host.name}; {said}")
            is_done, value = self._answers.pop(request)
        if not is_done:
            raise LaunchError(f"on the host {self.host.name}: {value}")
        return value

    def new_process(self, number: int) -> RemoteProcess:
        """Make a process that gets the messages with this number."""
        with self.news:
            process = self._processes[number] = RemoteProcess(number, self._drop_or_tell, self.news)
            if self.lost:
                process.on_lost(self.lost)
            return process

    def _drop_or_tell(self, name: str, number: int, *values: Any) -> None:
        if name == "drop":
            self._processes.pop(number, None)
        self.tell(name, number, *values)

    def close(self) -> None:
        """Close the connection, so that the agent ends."""
        self._closing = True
        self._tunnels.close()
        self._outbox.put(None)
        for process in [*self._processes.values()]:
            process.close()

    def kill(self) -> None:
        """Kill the transport's command if it still runs."""
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(OSError):
            # Only an own child that nobody has waited for: otherwise the number may belong to another process.
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    @property
    def pid(self) -> int | None:
        """Process id of the transport's command. The first line of the log has it; ``None`` before it has started."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._log.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0])
        return None
