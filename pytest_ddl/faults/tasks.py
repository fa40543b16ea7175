"""Know the tasks of a strategy that faults can strike, and refuse faults of others before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddl.faults.rank.fault import KINDS, Fault, FaultError

if TYPE_CHECKING:
    from pytest_ddl.strategies.registry import StrategyRegistry
    from pytest_ddl.strategies.spec import StrategySpec


@dataclass(frozen=True)
class Tasks:
    """Tasks of one variant of a strategy. Servers run no program, and are struck at points of the first rank."""

    ranks: tuple[str, ...]
    servers: tuple[str, ...] = ()
    addressed: bool = False
    """True if each server has an address of its own. Without servers: if each rank has one."""
    hint: str = ""
    """Words after the names of all tasks, if another variant has more."""

    @classmethod
    def of(cls, spec: StrategySpec, registry: StrategyRegistry) -> Tasks:
        topology = registry[spec.name].topology(spec)
        shared = spec.shape.get("processes") == "shared"
        hint = "; the servers have processes of their own with [processes=separate]" if shared else ""
        ranks, servers = tuple(map(str, topology.ranks)), tuple(map(str, topology.servers))
        return cls(ranks, servers, topology.ports == len(servers or ranks), hint)

    @property
    def every(self) -> tuple[str, ...]:
        """All tasks, the ranks first."""
        return (*self.ranks, *self.servers)

    def strike(self, faults: Iterable[Fault]) -> bool:
        """Return whether each fault can strike its task."""
        return all(not self._obstacle(fault.kind, fault.task) for fault in faults)

    def refuse_kind(self, name: str) -> None:
        """Refuse a kind of fault that can strike no rank.

        :raises FaultError: for a fault of the network, if there is none.
        """
        if obstacle := self._obstacle(name, self.ranks[0]):
            raise FaultError(f"{name}: {obstacle}")

    def _obstacle(self, name: str, task: str) -> str:
        """Return why a kind of fault cannot strike a task, or an empty text."""
        kind = KINDS[name]
        if kind.network and not self.addressed:
            return f"the tasks of this strategy have no connections between processes of their own{self.hint}"
        if task in self.servers and kind.signal is None and not kind.network:
            able = ", ".join(name for name, kind in KINDS.items() if kind.signal is not None or kind.network)
            return f"a server runs no program, so it gets only {able}"
        return ""

    def refuse_others(self, names: Iterable[str]) -> None:
        """Refuse names that are no tasks.

        :raises FaultError: for the first one.
        """
        for name in names:
            if name not in self.every:
                raise FaultError(f"task={name!r} does not exist; tasks: {', '.join(self.every)}{self.hint}")

    def refuse(self, faults: Iterable[Fault]) -> None:
        """Refuse faults that cannot strike.

        :raises FaultError: for the first one.
        """
        for fault in faults:
            self.refuse_others([fault.task])
            if obstacle := self._obstacle(fault.kind, fault.task):
                raise FaultError(f"{fault}: {obstacle}")
