"""Start workers on several hosts: the remote launcher keeps an agent on each, which holds a local launcher there."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import execnet

from pytest_ddl.cluster.cgroups import usable_cores
from pytest_ddl.cluster.launcher import LaunchError, Reservation
from pytest_ddl.cluster.local_launcher import CPU_SLOTS_PER_CORE, START_TIMEOUT
from pytest_ddl.cluster.obstacles import without_proxy_here
from pytest_ddl.cluster.resources import Ledger
from pytest_ddl.hosts import preflight
from pytest_ddl.hosts.agent import BEAT
from pytest_ddl.hosts.link import BOOTSTRAP_LINE, HostLink
from pytest_ddl.hosts.placement import place
from pytest_ddl.hosts.remote_process import RemoteProcess
from pytest_ddl.hosts.transport import Host, Transport, TransportError
from pytest_ddl.strategies.spec import Topology

AGENT_WAIT = 60.0
"""Maximum seconds until the Python on each host answers. A scheduler or a container may start it late."""
CLOSE_WAIT = 10.0
"""Maximum seconds until the agents have ended their workers. Then the transport's commands are killed."""


class RemoteReservation:
    """Hosts and addresses of one cluster."""

    def __init__(self, hosts: Sequence[int], addresses: Sequence[str], leases: Sequence[tuple[HostLink, int]]) -> None:
        self.hosts = tuple(hosts)
        """Number of the host of each process of the topology."""
        self.addresses = tuple(addresses)
        self._leases = list(leases)

    def release(self) -> None:
        while self._leases:
            link, request = self._leases.pop()
            link.tell("release", request)


class RemoteLauncher:
    """Launcher for several hosts. The agents start in the background; the first cluster waits for them."""

    address = None
    """Each worker of pytest-xdist has its own agents, because the channels of these belong to this process."""

    def __init__(self, transport: Transport, environ: Mapping[str, str], folder: Path, python: str) -> None:
        """Start a Python and an agent on each host of the transport.

        :param folder: scratch folder of the session, for locks and logs.
        :param python: path of Python on the hosts.
        :raises LaunchError: if the transport has no hosts.
        """
        self.ended = ""
        """Why this launcher cannot start workers any more. Empty while it can."""
        self._news = threading.Condition(threading.RLock())
        self._group = execnet.Group()
        self._transport = transport
        self._numbers = 0
        self._checked = False
        self._unshared: dict[Path, list[str]] = {}
        """Names of the hosts that do not see a folder, by folder."""
        self._closed = threading.Event()
        try:
            hosts = transport.hosts()
        except BaseException as error:
            transport.close()
            raise (LaunchError(str(error)) if isinstance(error, TransportError) else error) from None
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._slots = [host.slots or int(usable_cores()) for host in hosts]
        self.ledger = Ledger(folder, {"cpu": CPU_SLOTS_PER_CORE * sum(self._slots)})
        self._folder = Path(folder) / f"hosts-{id(self):x}"
        self._folder.mkdir(parents=True)
        self.links = [
            HostLink(host, self._news, self._group, self._folder / f"{index}.log") for index, host in enumerate(hosts)
        ]
        program = [python, "-u", "-c", BOOTSTRAP_LINE]
        for link in self.links:
            link.on_lost = self._note_lost
            link.open(transport.command(link.host, program), environ)
        threading.Thread(target=self._watch, name="ddl-hosts", daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(BEAT):
            for link in self.links:
                link.check_silence()

    def _note_lost(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    @property
    def hosts(self) -> list[Host]:
        """Hosts with their addresses. The first use waits until each has answered, and compares them.

        :raises LaunchError: if a host does not answer, or cannot work together with the others.
        """
        with self._news:
            if not self._checked:
                facts = preflight.check(self.links, time.monotonic() + AGENT_WAIT)
                for link, found in zip(self.links, facts, strict=True):
                    link.host = replace(link.host, address=link.host.address or found["address"])
                self._checked = True
            return [link.host for link in self.links]

    def hosts_without(self, folder: Path) -> list[str]:
        """Return the names of the hosts that do not see a folder of this machine.

        :raises LaunchError: if the hosts cannot work together.
        """
        if folder not in self._unshared:
            _ = self.hosts
            self._unshared[folder] = preflight.without(self.links, folder, time.monotonic() + AGENT_WAIT)
        return self._unshared[folder]

    def reserve(self, topology: Topology) -> RemoteReservation:
        hosts = self.hosts
        placed = place(topology, self._slots)
        listeners = [placed[process] for process in topology.listeners]
        requests = {host: self.links[host].request("lease", count) for host, count in Counter(listeners).items()}
        leases = [(self.links[host], request) for host, request in requests.items()]
        deadline = time.monotonic() + START_TIMEOUT
        try:
            ports = {
                host: iter(self.links[host].answer(request, deadline, "leasing ports"))
                for host, request in requests.items()
            }
        except BaseException:
            RemoteReservation(placed, (), leases).release()
            raise
        addresses = [f"{hosts[host].address}:{next(ports[host])}" for host in listeners]
        return RemoteReservation(placed, addresses, leases)

    def launch(self, reservation: Reservation, tasks: Sequence[int], environ: Mapping[str, str]) -> list[RemoteProcess]:
        assert isinstance(reservation, RemoteReservation)
        deadline = time.monotonic() + START_TIMEOUT
        started: dict[int, RemoteProcess] = {}
        numbers: dict[HostLink, list[int]] = {}
        with contextlib.ExitStack() as unless_started:
            for task in tasks:
                link = self.links[reservation.hosts[task]]
                self._numbers += 1
                started[task] = link.new_process(self._numbers)
                unless_started.callback(started[task].close)
                numbers.setdefault(link, []).append(self._numbers)
            proxies = without_proxy_here(environ, [link.host.address for link in self.links])
            given = {**environ, **proxies}
            requests = {link: link.request("launch", own, given) for link, own in numbers.items()}
            for link, request in requests.items():
                link.answer(request, deadline, "importing TensorFlow or forking workers")
            unless_started.pop_all()
        return [started[task] for task in tasks]

    def fileno(self) -> int:
        return self._wake.fileno()

    def poll(self) -> None:
        lost = [link.lost for link in self.links if link.lost]
        if lost:
            self.ended = self.ended or "; ".join(lost)
            raise LaunchError(self.ended)

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        for link in self.links:
            link.close()
            if link.lost:
                link.kill()
        # A gateway of a host that does not read would wait for ever in the calling thread.
        ending = threading.Thread(target=self._group.terminate, args=[CLOSE_WAIT], name="ddl-end", daemon=True)
        ending.start()
        ending.join(CLOSE_WAIT + 1)
        for link in self.links:
            link.kill()
        self._transport.close()
        for end in (self._wake, self._waker):
            end.close()
        shutil.rmtree(self._folder, ignore_errors=True)
