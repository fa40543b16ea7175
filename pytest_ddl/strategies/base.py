"""The seam between the tool and a strategy: what every strategy must be able to say and do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_ddl.strategies.spec import BuildContext, StrategySpec, Topology


@dataclass(frozen=True)
class Machine:
    """What this machine offers, found once per session by a probe process."""

    gpus: int = 0
    tpus: int = 0
    tpu_reason: str = ""
    """Why there is no TPU, in words for the user."""
    gpu_reason: str = ""
    tensorflow: str | None = None
    """Version of TensorFlow, or ``None`` where it is not installed."""
    keras: str | None = None


class StrategyDefinition(Protocol):
    """A strategy: its name, default shape, availability, topology and how it is made.

    Only :meth:`build` may import TensorFlow; the others run in the pytest process.
    """

    @property
    def name(self) -> str:
        """The name that options, markers and reports use."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Short names that are understood as well."""

    @property
    def summary(self) -> str:
        """One line for ``--ddl-list``."""

    @property
    def defaults(self) -> Mapping[str, int | str]:
        """The smallest shape that distributes; its keys are the keys that a variant may set."""

    def check(self, spec: StrategySpec) -> str | None:
        """Say what is wrong with a shape, or ``None``."""

    def unavailable(self, spec: StrategySpec, device: str, machine: Machine) -> str | None:
        """Say why the variant cannot run on this machine, or ``None`` where it can."""

    def topology(self, spec: StrategySpec) -> Topology:
        """The processes, devices and ports of a cluster of this shape."""

    def num_replicas(self, spec: StrategySpec) -> int:
        """``num_replicas_in_sync`` that the built strategy must have."""

    def build(self, context: BuildContext) -> Any:
        """Make the strategy in a fresh worker process whose TensorFlow is not initialised yet."""


@dataclass(frozen=True)
class RankContext:
    """A rank of a running cluster, as the code that runs in it sees it."""

    spec: StrategySpec
    strategy: Any
    """The ``tf.distribute.Strategy`` (or the strategy-shaped model parallel one)."""
    task: str
    rank: int
    num_ranks: int
    num_replicas: int
    device: str = "cpu"
    facts: Mapping[str, Any] = field(default_factory=dict)
