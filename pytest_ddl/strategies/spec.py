"""Describe a strategy and its variants: capabilities, name and shape, the processes of a cluster, how one builds it."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_ddl.messages import no_such_argument


@dataclass(frozen=True)
class Capabilities:
    """Properties of a strategy on which recording, checks and measurements depend.

    The default is a synchronous strategy: each replica gets a part of the batch, and collectives reduce gradients.
    """

    coordinator: bool = False
    """True if a coordinator schedules steps on workers. Workers then keep no records, take no step together, and have
    random generators of their own."""
    global_view: bool = False
    """True if the program sees the global batch and global variables, which are sharded over devices (DTensor)."""
    reduces_by_copies: bool = False
    """True if gradients are copied to one device and added there, instead of by collectives."""


HOSTS = "hosts"
"""Key of a shape that every strategy with several processes has, without a default: their number of hosts."""
SYNCHRONOUS = Capabilities()
"""Capabilities of a strategy that declares none."""


@dataclass(frozen=True)
class StrategySpec:
    """Variant of a strategy: a registered name and a complete shape.

    ``str(spec)`` is the canonical id ``name[key=value,…]`` in test ids, reports and options.
    ``StrategyRegistry.parse_variant(str(spec))`` returns an equal spec.
    """

    name: str
    shape: Mapping[str, int | str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.shape:
            return self.name
        return f"{self.name}[{','.join(f'{key}={value}' for key, value in self.shape.items())}]"

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def hosts(self) -> int:
        """Number of hosts over which its processes are spread, or 0 if the launcher chooses."""
        return int(self.shape.get(HOSTS, 0))

    def number(self, key: str) -> int:
        """Return a numeric value of the shape."""
        return int(self.shape[key])


@dataclass(frozen=True)
class Task:
    """Process of a cluster, as TF_CONFIG names it."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


@dataclass(frozen=True)
class Topology:
    """Processes, devices and ports of a cluster.

    ``ranks`` are the processes that run the test body. ``servers`` are processes that only serve: parameter servers
    and remote workers, if they are separate processes.
    """

    ranks: tuple[Task, ...]
    servers: tuple[Task, ...] = ()
    devices_per_process: int = 1
    """Number of logical devices that every rank needs."""
    ports: int = 0
    """Number of addresses to lease for the cluster."""
    hosts: int = 0
    """Number of hosts over which the processes must be spread, or 0 if the launcher chooses. A variant sets it."""

    @property
    def widest(self) -> int:
        """Largest number of ranks or of servers that have the same type. They can be on as many hosts."""
        groups = (Counter(task.type for task in group) for group in (self.ranks, self.servers))
        return max((number for group in groups for number in group.values()), default=0)

    @property
    def listeners(self) -> tuple[int, ...]:
        """Position of the process that listens at each address, in the list of the ranks followed by the servers.

        If there are as many addresses as servers, or as ranks without servers, each listens at its own. Otherwise all
        belong to the first rank, which runs its servers in its own process.
        """
        processes = range(len(self.ranks), len(self.ranks) + len(self.servers)) or range(len(self.ranks))
        return tuple(processes) if len(processes) == self.ports else (0,) * self.ports


@dataclass(frozen=True)
class BuildContext:
    """Information that a process of the cluster gets to build its strategy."""

    spec: StrategySpec
    topology: Topology
    task: Task
    rank: int
    """Position in ``topology.ranks``; -1 in a server."""
    addresses: tuple[str, ...] = ()
    """``"host:port"`` for each port of the topology. Every process of the cluster can connect to them."""
    device: str = "cpu"
    """Kind of device that the replicas run on: ``cpu``, ``gpu`` or ``tpu``, never ``auto``."""
    timeout: float | None = None
    """Seconds after which TensorFlow aborts a blocked collective, or ``None`` for never.

    It is ``None`` in a cluster: the controller enforces the deadline of each test, and many tests use one cluster. With
    a number of seconds, TensorFlow starts a thread for each collective, which waits for this time.
    """
    make_arguments: bytes = b""
    """Pickled function of the ``ddl`` marker that returns arguments of the strategy's constructor; empty for none."""

    def arguments(self, *valid: str) -> dict[str, Any]:
        """Return the arguments of the strategy's constructor that the ``ddl`` marker gives.

        :param valid: names of the arguments that a marker may give.
        :raises TypeError: if the function returns something else. The message is one line.
        """
        made = pickle.loads(self.make_arguments)() if self.make_arguments else {}
        if not isinstance(made, Mapping):
            raise TypeError(f"the function in arguments= of @pytest.mark.ddl must return a dict, not {made!r}")
        for name in made:
            if name not in valid:
                raise TypeError(no_such_argument(f"@pytest.mark.ddl(arguments=…): {self.spec.name}", name, valid))
        return dict(made)
