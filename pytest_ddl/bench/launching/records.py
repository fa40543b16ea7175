"""Settings and results of one launch of a training function, as plain data for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pytest_ddl.json_records import JsonRecord
from pytest_ddl.option_values import LONGEST_WAIT

SEED = 20_201


@dataclass(frozen=True)
class BenchSpec:
    """Settings for measuring a training function.

    :raises ValueError: if a value is invalid; it names the value.
    """

    batch_per_replica: int | None = None
    """Examples per step and replica, for weak scaling. Give either this or ``global_batch_size``."""
    global_batch_size: int | None = None
    """Examples per step over all replicas, for strong scaling."""
    warm_up: int = 10
    """Steps before timing starts, including the first (traced) one. More follow while the program still traces."""
    steps_per_block: int = 20
    """Steady steps between two readings of the clock."""
    blocks: int = 10
    """Minimum number of measured blocks."""
    seconds: float = 1.0
    """Minimum total seconds of the measured blocks; blocks are added until it is reached."""
    timeout: float = 120.0
    """Seconds for one launch, including everything."""
    pin: bool = False
    """True to give every replica its own cores: as many as the largest variant leaves for each."""
    device: str = "auto"
    """``cpu``, ``gpu``, ``tpu``, or ``auto``, which uses GPUs if there are any."""
    energy: bool = False
    """True to read energy counters around the steady steps."""
    seed: int = SEED
    count_all: bool = False
    """True to count the graphs of all steps, and not only those of the warm-up. It makes the measured steps slower."""
    overlap: bool = False
    """True to let the steps of ``run.steps`` overlap under ``parameter_server``. By default each waits for the one
    before, as in a comparison."""

    def __post_init__(self) -> None:
        for name in ("warm_up", "steps_per_block", "blocks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number, at least 1")
        for name in ("batch_per_replica", "global_batch_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name}={value!r} must be a whole number, at least 1, or None")
        if self.batch_per_replica is not None and self.global_batch_size is not None:
            raise ValueError(
                f"batch_per_replica={self.batch_per_replica} and global_batch_size={self.global_batch_size}: "
                "give one of them (the first for weak scaling, the second for strong scaling)"
            )
        for name in ("seconds", "timeout"):
            if not 0 < getattr(self, name) <= LONGEST_WAIT:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be a positive number of seconds, at most {LONGEST_WAIT:.0f}"
                )

    @property
    def scaling(self) -> str:
        """Scaling rule: ``weak`` (batch per replica fixed), ``strong`` (global batch fixed) or ``none``."""
        if self.batch_per_replica is not None:
            return "weak"
        return "strong" if self.global_batch_size is not None else "none"

    def batch_for(self, replicas: int) -> int | None:
        """Return the global batch size for a number of replicas."""
        return self.batch_per_replica * replicas if self.batch_per_replica is not None else self.global_batch_size


@dataclass(frozen=True)
class EnergyReading:
    """Energy that was used while steady steps ran: either ``joules`` or the ``reason`` why there is no number."""

    joules: float | None
    """Joules over ``seconds`` of all devices that the source covers; ``None`` if nothing could be read."""
    seconds: float = 0.0
    source: str = ""
    """``nvml`` or ``rapl``, with what it covers, for example ``nvml: 2 GPUs``."""
    reason: str = ""
    """Reason why there is no number, in words for the user."""


NOT_ASKED = EnergyReading(None, reason="not asked for")


@dataclass(frozen=True)
class Counters:
    """Counters of a steady step, taken from the graphs that ran. They do not depend on the machine or its load.

    Counts are those of one replica in one step. For a program with several traced functions, they are the sum.
    """

    collectives: Mapping[str, int] = field(default_factory=dict)
    """Kind (``all_reduce``, ``all_gather``, ``broadcast`` ...) -> collectives per step."""
    reduced_bytes: int = 0
    """Bytes that one replica puts into reductions in one step."""
    packs: int = 0
    """Reductions that carry more than one tensor."""
    unpacked: int = 0
    """Reductions that carry a single tensor."""
    nodes: int = 0
    """Operations in the graphs of a step."""
    executions: int = 0
    """Graphs that one step executes."""
    kernels: int = 0
    """Operations that the devices of this process execute in a step, after TensorFlow has optimized and split its
    graphs; 0 if they were not counted."""
    traces: int = 0
    """Traces up to the first steady step."""
    retraces: int = 0
    """Traces within the steady steps; 0 for a correct program."""
    steady_steps: int = 0
    """Number of steady steps in which ``retraces`` are counted."""
    parameter_bytes: int = 0
    """Bytes of the watched trainable variables in one replica's copy; 0 if nothing was watched."""
    reduced_dtypes: Mapping[str, int] = field(default_factory=dict)
    """dtype -> its bytes in ``reduced_bytes``."""
    copies: Mapping[str, int] | None = None
    """Direction -> tensors that one step of this process copies; ``None`` if they were not counted. Directions are
    ``host_to_device``, ``device_to_host``, ``device_to_device`` (also between virtual CPUs) and ``between_tasks``."""
    host_calls: int = 0
    """Python functions, summaries and prints that one step of this process calls; devices wait for each of them."""
    misplaced: tuple[str, ...] = ()
    """Variables that are not on a device of their replica, as ``name: device``."""
    eager: bool = False
    """True if steps ran eagerly: their collectives are in no graph and were not counted."""
    notes: tuple[str, ...] = ()
    """Remarks on the counters: what could not be counted and why, and how ranks differ."""
    uncounted: tuple[str, ...] = ()
    """Reasons why the counts are too small to compare: a loop of unknown length, steps that run elsewhere."""
    conditional: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of its ``collectives`` in branches that may not be taken; they are counted as if they were."""
    gathered_bytes: int = 0
    """Bytes that one replica receives from collectives other than reductions in one step."""
    of_steps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Counter -> its value in each counted step, in order. A counter that is 0 in every step may be missing; ``eager``
    never is. Empty if steps could not be counted one by one."""

    @property
    def counted_steps(self) -> int:
        """Number of steps in ``of_steps``."""
        return len(self.of_steps.get("eager", ()))


@dataclass(frozen=True)
class RankTiming:
    """Measurements of one rank. Seconds are of a monotonic clock, which is read after all devices have finished."""

    rank: int
    task: str
    blocks: tuple[float, ...]
    """Seconds of each block of ``Launch.steps_per_block`` steady steps."""
    build_seconds: float
    """Seconds from the call of ``train(run)`` to the first step: models, data, placement."""
    first_step_seconds: float
    """Seconds of the first step, including tracing and compiling."""
    warm_up_seconds: float
    """Seconds of the steps between the first step and the first steady step."""
    peak_memory_bytes: int
    """Largest resident set of the process in bytes (``VmHWM``)."""
    device_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """GPU -> peak bytes allocated by TensorFlow; empty without GPUs."""
    energy: EnergyReading = NOT_ASKED
    loss: float | None = None
    """Loss of the last steady step, if the program reports one."""
    program: str = ""
    """File that the training function was imported from."""
    remarks: tuple[str, ...] = ()
    """Limits of the times, for example that only some of several loops were measured."""
    host: str = ""
    """Host of the rank; see :func:`pytest_ddl.bench.launching.machine.host_identity`."""
    examples: int | None = None
    """Rows that this rank's replicas take in a step, from batches that were read after the last one; ``None`` if
    unknown."""


@dataclass(frozen=True)
class Launch(JsonRecord):
    """One launch: fresh processes that run blocks of steady steps under one variant of a strategy.

    Statistics treat each launch as one sample. Blocks of one launch share its memory layout and placement, so their
    spread understates the spread between launches (Kalibera and Jones 2013, arXiv 2007.10899).
    """

    DERIVED: ClassVar = ("derived",)

    strategy: str
    """Variant of the strategy, for example ``mirrored[replicas=2]``."""
    replicas: int
    ranks: tuple[RankTiming, ...]
    counters: Counters
    global_batch_size: int | None
    """Examples per step over all replicas that the program was asked to take."""
    steps_per_block: int
    wall_seconds: float
    """Seconds from the request for processes to their answers, including everything."""
    device: str = "cpu"
    pinned: bool = False
    """True if every replica had its own cores."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Description of the machine: ``host``, ``cpu``, ``cores``, ``gpu``, ``os``, ``load``."""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host of each rank; see :attr:`RankTiming.host`."""
        return tuple(rank.host for rank in self.ranks)

    @property
    def step_seconds(self) -> list[float]:
        """Seconds per step of the slowest rank, one sample per block. A synchronous step ends with its slowest rank."""
        blocks = zip(*(rank.blocks for rank in self.ranks), strict=True)
        return [max(block) / self.steps_per_block for block in blocks]

    @property
    def median_step_seconds(self) -> float:
        return statistics.median(self.step_seconds)

    @property
    def throughput(self) -> float | None:
        """Examples per second from the median step.

        ``None`` if no time was measured or there is a :attr:`batch_problem`.
        """
        if self.global_batch_size is None or self.batch_problem or not self.median_step_seconds > 0:
            return None
        return self.global_batch_size / self.median_step_seconds

    @property
    def examples_per_step(self) -> int | None:
        """Rows that all replicas took in a step, as counted; ``None`` if a rank did not see its batches."""
        seen = [rank.examples for rank in self.ranks]
        return None if None in seen else sum(rows or 0 for rows in seen)

    @property
    def batch_problem(self) -> str:
        """Reason why the examples per step are not known: none were declared, or another number was counted.

        Empty if they are known.
        """
        declared, counted = self.global_batch_size, self.examples_per_step
        if declared is None:
            return "the global batch size is not known: give batch_per_replica= or global_batch_size="
        if counted is None or counted == declared:
            return ""
        return (
            f"{counted} examples were counted in a step where batch_per_replica= or global_batch_size= declares "
            f"{declared}: batch the data with run.global_batch_size, check that there is enough data for one batch, "
            "or declare the batch size that the program uses"
        )

    @property
    def measured_seconds(self) -> float:
        """Wall time of the steady steps in seconds."""
        return sum(self.step_seconds) * self.steps_per_block

    @property
    def derived(self) -> dict[str, Any]:
        """Values that follow from the others, for programs that read the JSON."""
        return {
            "step_seconds": self.step_seconds,
            "median_step_seconds": self.median_step_seconds,
            "throughput": self.throughput,
        }
