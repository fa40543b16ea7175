"""Interface that a strategy implements to run under the plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pytest_ddl.strategies.spec import SYNCHRONOUS, BuildContext, Capabilities, StrategySpec, Task, Topology


@dataclass(frozen=True)
class Machine:
    """Devices and versions on this machine. A probe process finds the devices once per session."""

    gpus: int = 0
    tpus: int = 0
    tpu_reason: str = ""
    """Reason why there is no TPU, in words for the user."""
    gpu_reason: str = ""
    gpu_memory_mb: int = 0
    """Memory in MB of the GPU that has the least; 0 if it is not known."""
    tensorflow: str | None = None
    """Version of TensorFlow, or ``None`` if it is not installed."""
    keras: str | None = None


class StrategyDefinition(Protocol):
    """Interface of a strategy: its name, default shape, availability and topology, and how to build it.

    Only :meth:`build` may import TensorFlow. The other methods run in the pytest process. A definition inherits from
    this class, and so gets the defaults of the members that have one.
    """

    @property
    def name(self) -> str:
        """Name that options, markers and reports use."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Short names that options and markers also accept (default: none)."""
        return ()

    @property
    def summary(self) -> str:
        """One-line description for ``--ddl-list``."""

    @property
    def defaults(self) -> Mapping[str, int | str]:
        """Smallest shape that distributes the training. A variant may set these keys and no others."""

    @property
    def capabilities(self) -> Capabilities:
        """Properties on which recording, checks and measurements depend (default: a synchronous strategy)."""
        return SYNCHRONOUS

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of the constructor that ``arguments=`` of the ``ddl`` marker may give (default: none).

        :meth:`build` passes ``context.arguments(*self.arguments)`` to the constructor.
        """
        return ()

    def check(self, spec: StrategySpec) -> str | None:
        """Return what is wrong with a shape, or ``None`` if it is valid (default: every shape is valid)."""
        return None

    def unavailable(self, spec: StrategySpec, device: str, machine: Machine) -> str | None:
        """Return why the variant cannot run on this machine, or ``None`` if it can (default: a CPU, or any GPU)."""
        if device == "gpu" and machine.gpus == 0:
            return f"needs a GPU (device=gpu): {machine.gpu_reason or 'TensorFlow sees none'}"
        if device == "tpu":
            return "runs on CPUs and GPUs only (device=tpu selects the strategy 'tpu')"
        return None

    def topology(self, spec: StrategySpec) -> Topology:
        """Return the processes, devices and ports of a cluster of this shape (default: one process, one device)."""
        return Topology(ranks=(Task("worker", 0),))

    def num_replicas(self, spec: StrategySpec) -> int:
        """Return the ``num_replicas_in_sync`` that the built strategy must have, or 0 if it is not known."""

    def build(self, context: BuildContext) -> Any:
        """Build the strategy in a fresh worker process whose TensorFlow is not initialized yet."""


def capabilities_of(definition: StrategyDefinition) -> Capabilities:
    """Return the capabilities of a definition, or the default if its plugin declares none."""
    return getattr(definition, "capabilities", SYNCHRONOUS)


def topology_of(definition: StrategyDefinition, spec: StrategySpec) -> Topology:
    """Return the processes of a variant, and the number of hosts that it asks for."""
    return replace(definition.topology(spec), hosts=spec.hosts)


@dataclass(frozen=True)
class RankContext:
    """Rank of a running cluster, as the code that runs in it sees it."""

    spec: StrategySpec
    strategy: Any
    """The ``tf.distribute.Strategy``, or the ``ModelParallelStrategy`` that imitates one."""
    task: str
    rank: int
    num_ranks: int
    num_replicas: int
    device: str = "cpu"
    capabilities: Capabilities = SYNCHRONOUS
