"""Know the tasks of a strategy that faults can strike, and refuse faults of others before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddl.training.faults import KINDS, Fault, FaultError

if TYPE_CHECKING:
    from pytest_ddl.strategies.registry import StrategyRegistry
    from pytest_ddl.strategies.spec import StrategySpec


@dataclass(frozen=True)
class Tasks:
    """Tasks of one variant of a strategy. Servers run no program, and are struck at points of the first rank."""

    ranks: tuple[str, ...]
    servers: tuple[str, ...] = ()
    hint: str = ""
    """Words after the names of all tasks, if another variant has more."""

    @classmethod
    def of(cls, spec: StrategySpec, registry: StrategyRegistry) -> Tasks:
        topology = registry[spec.name].topology(spec)
        shared = spec.shape.get("processes") == "shared"
        hint = "; the servers have processes of their own with [processes=separate]" if shared else ""
        return cls(tuple(map(str, topology.ranks)), tuple(map(str, topology.servers)), hint)

    @property
    def every(self) -> tuple[str, ...]:
        """All tasks, the ranks first."""
        return (*self.ranks, *self.servers)

    def strike(self, faults: Iterable[Fault]) -> bool:
        """Return whether each fault can strike its task."""
        return all(fault.task not in self.servers or KINDS[fault.kind].signal is not None for fault in faults)

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
            if not self.strike([fault]):
                able = ", ".join(name for name, kind in KINDS.items() if kind.signal is not None)
                raise FaultError(f"{fault}: a server runs no program, so it gets only {able}")
