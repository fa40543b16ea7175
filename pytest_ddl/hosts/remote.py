"""Start workers on several hosts: the remote launcher has an agent on each, which holds a local launcher there."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_ddl.cluster.cgroups import usable_cores
from pytest_ddl.cluster.launcher import PLACE, Reservation
from pytest_ddl.cluster.local_launcher import CPU_SLOTS_PER_CORE, START_TIMEOUT
from pytest_ddl.cluster.obstacles import LaunchError, without_proxy_here
from pytest_ddl.cluster.resources import Ledger
from pytest_ddl.hosts.group import HostGroup
from pytest_ddl.hosts.link import HostLink
from pytest_ddl.hosts.placement import place
from pytest_ddl.hosts.project import Project
from pytest_ddl.hosts.remote_process import RemoteProcess
from pytest_ddl.hosts.transport import Transport
from pytest_ddl.strategies.spec import Topology

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPUS = "_PYTEST_DDL_GPUS"
"""Variable for :meth:`RemoteLauncher.launch`, which no process gets: CUDA_VISIBLE_DEVICES of each process, as JSON."""


def _kind(host: int) -> str:
    """Return the kind of slot of the GPUs of a host. All workers of pytest-xdist have the same order of hosts."""
    return f"gpu{host}"


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

    def __init__(
        self,
        transport: Transport,
        environ: Mapping[str, str],
        folder: Path,
        python: str,
        project: Project | None = None,
        *,
        start_timeout: float = START_TIMEOUT,
        warm: bool = False,
    ) -> None:
        """Start an agent and a local launcher on each host of the transport.

        :param environ: environment of the processes that start workers.
        :param folder: scratch folder of the session, for locks and logs.
        :param python: path of Python on the hosts.
        :param project: files to copy to each host, for ``--ddl-sync``.
        :param start_timeout: maximum seconds for importing TensorFlow on each host, and for each later answer of it.
        :param warm: fork the zygote of a host from its warm server, if it has one that fits.
        :raises LaunchError: if the transport has no hosts.
        """
        self._start_timeout = start_timeout
        self.ended = ""
        """Why this launcher cannot start workers any more. Empty while it can."""
        self.group = HostGroup(transport, folder, python, project)
        self._links = self.group.links
        self._slots = [link.host.slots or int(usable_cores()) for link in self._links]
        self.ledger = Ledger(folder, {"cpu": CPU_SLOTS_PER_CORE * sum(self._slots)})
        self._gpus: list[list[str]] | None = None
        """Names of the GPUs of each host, once they are known."""
        self._numbers = 0
        for link in self._links:
            link.tell("start", dict(environ), start_timeout, warm)

    def hosts_without(self, folder: Path) -> list[str]:
        """Return the names of the hosts that do not see a folder of this machine.

        :raises LaunchError: if the hosts cannot work together.
        """
        return self.group.without(folder)

    def text_of_rank(self, text: str) -> str:
        """Return a text that a rank has written, with the paths of this machine."""
        places = self.group.places
        return text if places is None else places.text_of_rank(text)

    def offer(self, address: str) -> None:
        """Let ranks connect to a Unix socket of this process; see :mod:`pytest_ddl.cluster.doors`."""
        for link in self._links:
            link.offer(address)

    def crowds(self, topology: Topology) -> dict[str, tuple[int, int]]:
        """Return the number of ranks on each machine and the cores that they share, by the name of its first host.

        Emulated hosts share the cores of their machine. Containers of one machine do, or have cores of their own.

        :raises ValueError: if two hosts share some of their cores, and not all.
        :raises LaunchError: if the hosts cannot work together.
        """
        machines = self.group.machines()
        hosts = place(topology, self._slots)[: len(topology.ranks)]
        for one, other in itertools.combinations(sorted(set(hosts)), 2):
            (machine, cores), (second, others) = machines[one], machines[other]
            if machine == second and cores != others and cores & others:
                names = f"{self._links[one].host.name} and {self._links[other].host.name}"
                raise ValueError(f"{names} share some of their cores, and not all: give both the same, or each its own")
        first = {machines[host]: self._links[host].host.name for host in reversed(hosts)}
        return {
            first[machine]: (ranks, len(machine[1]))
            for machine, ranks in Counter(map(machines.__getitem__, hosts)).items()
        }

    def gpus(self) -> dict[str, int]:
        """Return the number of GPUs that ranks may use on each host, by its name. The first call waits for the hosts.

        :raises LaunchError: if a host does not answer.
        """
        if self._gpus is None:
            self._gpus = self.group.gpus()
            self.ledger.capacity.update({_kind(host): len(names) for host, names in enumerate(self._gpus)})
        return {link.host.name: len(names) for link, names in zip(self._links, self._gpus, strict=True)}

    def gpu_slots(self, topology: Topology) -> dict[str, int]:
        """Return how many GPUs the processes of a cluster need on each host, by the kind of the slots in the ledger."""
        self.gpus()
        on_hosts = Counter(place(topology, self._slots))
        return {_kind(host): count * topology.devices_per_process for host, count in sorted(on_hosts.items())}

    def gpu_environ(self, topology: Topology, slots: Mapping[str, Sequence[int]]) -> dict[str, str]:
        """Return what :meth:`launch` needs in its environment to give each process the GPUs of its host.

        :param slots: numbers of the slots by their kind, as :meth:`gpu_slots` names it.
        """
        names = self._gpus or []
        placed = place(topology, self._slots)
        given = []
        for process, host in enumerate(placed):
            own = [names[host][number] for number in slots.get(_kind(host), ())]
            first = placed[:process].count(host) * topology.devices_per_process
            # If there are too few for all, they share them, as on one machine.
            enough = len(own) >= placed.count(host) * topology.devices_per_process
            given.append(",".join(own[first : first + topology.devices_per_process] if enough else own))
        return {_GPUS: json.dumps(given)}

    def reserve(self, topology: Topology) -> RemoteReservation:
        number = len(self._links)
        if topology.hosts > number:
            names = ", ".join(link.host.name for link in self._links)
            raise LaunchError(
                f"hosts={topology.hosts} is more than the {number} hosts of --ddl-launcher ({names}); add hosts there, "
                f"or write hosts={number}"
            )
        hosts = self.group.hosts
        self.group.compare_files()
        placed = place(topology, self._slots)
        if len(set(placed)) > 1:
            self.group.check_connections()
        listeners = [placed[process] for process in topology.listeners]
        requests = {host: self._links[host].request("lease", count) for host, count in Counter(listeners).items()}
        leases = [(self._links[host], request) for host, request in requests.items()]
        deadline = time.monotonic() + self._start_timeout
        try:
            ports = {
                host: iter(self._links[host].answer(request, deadline, "leasing ports"))
                for host, request in requests.items()
            }
        except BaseException:
            RemoteReservation(placed, (), leases).release()
            raise
        addresses = [f"{hosts[host].address}:{next(ports[host])}" for host in listeners]
        return RemoteReservation(placed, addresses, leases)

    def launch(self, reservation: Reservation, tasks: Sequence[int], environ: Mapping[str, str]) -> list[RemoteProcess]:
        assert isinstance(reservation, RemoteReservation)
        deadline = time.monotonic() + self._start_timeout
        started: dict[int, RemoteProcess] = {}
        numbers: dict[HostLink, list[int]] = {}
        with contextlib.ExitStack() as unless_started:
            for task in tasks:
                link = self._links[reservation.hosts[task]]
                self._numbers += 1
                started[task] = link.new_process(self._numbers)
                unless_started.callback(started[task].close)
                numbers.setdefault(link, []).append(self._numbers)
            proxies = without_proxy_here(environ, [link.host.address for link in self._links])
            visible = json.loads(environ.get(_GPUS, "{}"))
            own: dict[int, dict[str, str]] = {
                started[task].number: {_VISIBLE: visible[task]} if visible else {} for task in tasks
            }
            if PLACE in environ:
                machines = self.group.machines()
                on = [machines[host] for host in reservation.hosts]
                for task in tasks:
                    own[started[task].number][PLACE] = str(on[:task].count(on[task]))
            given = {name: value for name, value in {**environ, **proxies}.items() if name != _GPUS}
            requests = {
                # Workers without variables of their own are forked together.
                link: link.request("launch", mine, given, {number: own[number] for number in mine if own[number]})
                for link, mine in numbers.items()
            }
            for link, request in requests.items():
                link.answer(request, deadline, "importing TensorFlow or forking workers")
            unless_started.pop_all()
        return [started[task] for task in tasks]

    def fileno(self) -> int:
        return self.group.fileno()

    def poll(self) -> None:
        self.ended = self.ended or self.group.lost
        if self.ended:
            raise LaunchError(self.ended)

    def close(self) -> None:
        self.group.close()
