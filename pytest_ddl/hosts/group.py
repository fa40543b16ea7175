"""Keep the connections to all hosts of a run, and notice when one is lost."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import execnet

from pytest_ddl.cluster import session_folder
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.relocating import FolderPlaces
from pytest_ddl.cluster.state import user_files, user_modules
from pytest_ddl.hosts import preflight, questions
from pytest_ddl.hosts.agent import BEAT
from pytest_ddl.hosts.checked import command_of, hosts_of
from pytest_ddl.hosts.copying import Copying
from pytest_ddl.hosts.execnet_adapter import BOOTSTRAP_LINE
from pytest_ddl.hosts.link import HostLink
from pytest_ddl.hosts.project import Project
from pytest_ddl.hosts.transport import Host, Transport

AGENT_WAIT = 60.0
"""Maximum seconds until the Python on each host answers. A scheduler or a container may start it late."""
CLOSE_WAIT = 10.0
"""Maximum seconds until the agents have ended their workers. Then the transport's commands are killed."""


class HostGroup:
    """Connections to the hosts of a transport. They are opened in the background."""

    def __init__(self, transport: Transport, folder: Path, python: str, project: Project | None = None) -> None:
        """Start a Python and an agent on each host of the transport.

        :param folder: scratch folder of the session, for logs.
        :param python: path of Python on the hosts.
        :param project: files to copy to each host, for ``--ddl-sync``.
        :raises LaunchError: if the transport has no hosts, or returns something else than its interface says.
        """
        self.transport = transport
        self._facts: list[dict[str, Any]] | None = None
        self._problems: list[preflight.Problem] = []
        self._just_checked = False
        """True if the connections were checked for the first cluster."""
        self._compared: set[str] = set()
        """Files of the user that are the same on all hosts."""
        self._closed = threading.Event()
        self._execnet = execnet.Group()
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(lambda: getattr(transport, "close", lambda: None)())
            hosts = hosts_of(transport)
            program = [python, "-u", "-c", BOOTSTRAP_LINE]
            commands = [command_of(transport, host, program) for host in hosts]
            unless_made.pop_all()
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._folder = Path(tempfile.mkdtemp(prefix=session_folder.ZYGOTE_PREFIX, dir=folder))
        # No zygote on this machine would remove the session's folder if this process is killed.
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", session_folder.__file__, str(self._folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        news = threading.Condition(threading.RLock())
        self.links = [
            HostLink(host, news, self._execnet, self._folder / f"{index}.log", self._note_lost)
            for index, host in enumerate(hosts)
        ]
        self._copying = None if project is None else Copying(project, self.links)
        for link, command in zip(self.links, commands, strict=True):
            link.open(command)
        threading.Thread(target=self._watch, name="ddl-hosts", daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(BEAT):
            for link in self.links:
                link.check_silence()

    def _note_lost(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when a host is lost."""
        return self._wake.fileno()

    @property
    def lost(self) -> str:
        """Why hosts cannot be used any more. Empty while all can."""
        return "; ".join(link.lost for link in self.links if link.lost)

    @property
    def hosts(self) -> list[Host]:
        """Hosts with their addresses. The first use waits until each has answered, and compares them.

        What keeps them from working together is asked once: a broken network may need seconds for each answer.

        :raises LaunchError: if a host does not answer, or cannot work together with the others.
        """
        if self._facts is None:
            _raise_for(self._problems)
            facts, self._problems = self.examine()
            _raise_for(self._problems)
            for link, found in zip(self.links, facts, strict=True):
                link.host = replace(link.host, address=link.host.address or found["address"])
            if self._copying is not None:
                self._copying.begin(user_files.files(user_modules.loaded().values()))
            self._facts = facts
            self._just_checked = True
        return [link.host for link in self.links]

    def machines(self) -> list[tuple[str, frozenset[int]]]:
        """Return the machine of each host, and the cores that ranks may use there.

        :raises LaunchError: if a host does not answer, or cannot work together with the others.
        """
        _ = self.hosts
        return [(facts["machine"], frozenset(facts["affinity"])) for facts in self._facts or []]

    def gpus(self) -> list[list[str]]:
        """Return the names of the GPUs that ranks may use on each host, for ``CUDA_VISIBLE_DEVICES``.

        :raises LaunchError: if a host does not answer.
        """
        by_host: list[list[str]] = [[] for _ in self.links]
        if any(link.host.gpus for link in self.links):
            by_host = self.ask(f"{questions.__name__}:gpus", [], "counting GPUs")
        return [_first(names, link.host.gpus) for link, names in zip(self.links, by_host, strict=True)]

    def examine(self) -> tuple[list[dict[str, Any]], list[preflight.Problem]]:
        """Return the facts of each host, and what keeps the hosts from working together.

        :raises LaunchError: if a host does not answer.
        """
        is_copied = self._copying is not None and self._copying.project.relative(os.getcwd()) is not None
        return preflight.examine(self.links, time.monotonic() + AGENT_WAIT, needs_directory=not is_copied)

    @property
    def places(self) -> FolderPlaces | None:
        """Places of the copies of the user's files on the hosts. ``None`` if they have none."""
        return None if self._copying is None else self._copying.places

    def check_connections(self) -> None:
        """Check that each host still reaches all hosts. A cluster over a broken network would wait until its deadline.

        :raises LaunchError: if one does not.
        """
        _ = self.hosts
        if not self._just_checked:
            _raise_for(preflight.unreachable(self.links, self._facts or [], time.monotonic() + AGENT_WAIT))
        self._just_checked = False

    def compare_files(self) -> None:
        """Check that the user's modules that this process has imported are the same on all hosts.

        :raises LaunchError: if the files of a host differ.
        """
        paths = user_files.files(user_modules.loaded().values()) - self._compared
        if self._copying is not None and self.places is not None:
            copied = {path for path in paths if self._copying.project.relative(path) is not None}
            self._copying.add(copied)
            self._compared |= copied
            paths -= copied
        if paths:
            _raise_for(preflight.other_files(self.links, paths, time.monotonic() + AGENT_WAIT))
            self._compared |= paths

    def without(self, folder: Path) -> list[str]:
        """Return the names of the hosts that do not see a folder of this machine.

        :raises LaunchError: if the hosts cannot work together.
        """
        _ = self.hosts
        return preflight.without(self.links, folder, time.monotonic() + AGENT_WAIT)

    def ask(self, question: str, arguments: Sequence[Any], what: str) -> list[Any]:
        """Call a function on each host, at the same time. Return the answers in the order of the hosts.

        :param question: function as ``"module:name"``.
        :param what: what it does, for the message if there is no answer.
        :raises LaunchError: if a host does not answer.
        """
        return preflight.ask(
            self.links, question, [list(arguments)] * len(self.links), what, time.monotonic() + AGENT_WAIT
        )

    def close(self) -> None:
        """End the agents and their workers. A second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        for link in self.links:
            link.close()
            if link.lost:
                link.kill()
        # A gateway of a host that does not read would wait for ever in the calling thread.
        ending = threading.Thread(target=self._execnet.terminate, args=[CLOSE_WAIT], name="ddl-end", daemon=True)
        ending.start()
        ending.join(CLOSE_WAIT + 1)
        for link in self.links:
            link.kill()
        for end in (self._wake, self._waker):
            end.close()
        # It removes the folder of this group.
        self._sweeper.communicate(b"the session goes on")
        # At last, because that of a plugin may raise.
        self.transport.close()


def _first(names: list[str], number: int) -> list[str]:
    """Return as many names of GPUs as a transport says, or all if it says nothing (-1)."""
    return names if number < 0 else [*names, *map(str, range(len(names), number))][:number]


def _raise_for(problems: Sequence[preflight.Problem]) -> None:
    if problems:
        lines = "".join(f"\n  {problem.host}: {problem.found}; {problem.fix}" for problem in problems)
        raise LaunchError(f"the hosts cannot work together:{lines}")
