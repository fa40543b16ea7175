"""A strategy as it is named: parsing and printing of ``name[key=value,…]``, and its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StrategySpec:
    """One variant of a strategy: a registered name and a complete shape.

    ``str(spec)`` is the canonical id used in test ids, reports and options, and
    ``parse_variant(str(spec))`` gives the same text back.
    """

    name: str
    shape: Mapping[str, int | str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.shape:
            return self.name
        return f"{self.name}[{','.join(f'{key}={value}' for key, value in self.shape.items())}]"

    def __hash__(self) -> int:
        return hash(str(self))

    def number(self, key: str) -> int:
        """A numeric part of the shape."""
        return int(self.shape[key])


@dataclass(frozen=True)
class Task:
    """One worker process of a cluster, as TF_CONFIG names it."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


@dataclass(frozen=True)
class Topology:
    """What a cluster for a spec is made of.

    ``ranks`` are the processes that run the test body; ``servers`` are processes that only
    serve (parameter servers and remote workers, where they are separate processes).
    """

    ranks: tuple[Task, ...]
    servers: tuple[Task, ...] = ()
    devices_per_process: int = 1
    """Logical devices that every rank needs."""
    ports: int = 0
    """Ports to lease for the cluster."""


@dataclass(frozen=True)
class BuildContext:
    """What a process of the cluster knows when it builds its strategy."""

    spec: StrategySpec
    topology: Topology
    task: Task
    rank: int
    """Position among ``topology.ranks``; -1 in a server."""
    ports: tuple[int, ...] = ()
    device: str = "cpu"
    """``cpu``, ``gpu`` or ``tpu``: what the replicas run on, already decided."""
    timeout: float = 60.0
    """Seconds after which a blocked collective gives up by itself."""
