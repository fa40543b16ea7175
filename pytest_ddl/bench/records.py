"""What one launch of a training function left behind: times, counters, memory, energy. Plain data that goes to JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class EnergyReading:
    """Energy that was used while steady steps ran; either ``joules`` or the ``reason`` why there are none."""

    joules: float | None
    """Joules over ``seconds``, of every device that the source covers; ``None`` where nothing could be read."""
    seconds: float = 0.0
    source: str = ""
    """``nvml`` or ``rapl``, with what it covers: ``nvml: 2 GPUs``."""
    reason: str = ""
    """Why there is no number, in words for the user."""


@dataclass(frozen=True)
class Counters:
    """What a steady step does, counted in the graphs that ran: the same on every machine, however busy.

    Counts are those of one replica in one step; of a program with several traced functions, their sum.
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
    traces: int = 0
    """Traces up to the first steady step."""
    retraces: int = 0
    """Traces within the steady steps; of a correct program 0."""
    steady_steps: int = 0
    """The steady steps that ``retraces`` counts over."""
    parameter_bytes: int = 0
    """Bytes of the watched trainable variables, one replica's copy; 0 where nothing was watched."""
    reduced_dtypes: Mapping[str, int] = field(default_factory=dict)
    """dtype -> bytes of it in ``reduced_bytes``."""
    copies: Mapping[str, int] | None = None
    """``host_to_device``, ``device_to_host``, ``device_to_device`` (also between virtual CPUs) and ``between_tasks``
    -> tensors that one step of this process copies; ``None`` where not counted."""
    host_calls: int = 0
    """Python functions, summaries and prints that one step of this process calls: each is a stop at the host."""
    misplaced: tuple[str, ...] = ()
    """Variables that are not on a device of their replica, as ``name: device``."""
    eager: bool = False
    """Whether steps ran eagerly: their collectives are in no graph and were not counted."""
    notes: tuple[str, ...] = ()
    """What could not be counted, and why; where ranks differ, and how."""
    uncounted: tuple[str, ...] = ()
    """Why counts of graphs are too small to compare with: a loop of unknown length, steps that run elsewhere."""
    conditional: Mapping[str, int] = field(default_factory=dict)
    """Kind -> of ``collectives``, those in a branch that may not be taken; they are counted as if it were."""
    gathered_bytes: int = 0
    """Bytes that collectives other than reductions hand to one replica in one step."""


@dataclass(frozen=True)
class RankTiming:
    """What one rank measured. Seconds are of a monotonic clock, read after all devices had finished."""

    rank: int
    task: str
    blocks: tuple[float, ...]
    """Seconds of each block of ``Launch.steps_per_block`` steady steps."""
    build_seconds: float
    """From the call of ``train(run)`` to the first step: models, data, placement."""
    first_step_seconds: float
    """The first step, tracing and compiling included."""
    warm_up_seconds: float
    """The steps between the first and the first steady one."""
    peak_memory_bytes: int
    """Largest resident set of the process (``VmHWM``)."""
    device_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """GPU -> peak bytes allocated by TensorFlow; empty without GPUs."""
    energy: EnergyReading = EnergyReading(None, reason="not asked for")
    loss: float | None = None
    """Of the last steady step, where the program tells one."""
    program: str = ""
    """File that the training function was imported from."""
    remarks: tuple[str, ...] = ()
    """What the times do not tell of, as that of several loops only some were measured."""
    examples: int | None = None
    """Rows that this rank's replicas took in a step: of its batches, seen after the last; ``None`` where not seen."""


@dataclass(frozen=True)
class Launch:
    """One launch: fresh processes, one variant of a strategy, blocks of steady steps. The unit of statistics.

    Blocks of one launch share its memory layout and placement, so that their spread understates the spread
    between launches (Kalibera and Jones 2013, arXiv 2007.10899).
    """

    strategy: str
    """The variant: ``mirrored[replicas=2]``."""
    replicas: int
    ranks: tuple[RankTiming, ...]
    counters: Counters
    global_batch_size: int | None
    """Examples per step over all replicas, as declared: what the program was asked to take."""
    steps_per_block: int
    wall_seconds: float
    """From asking for processes to having their answers, everything included."""
    device: str = "cpu"
    pinned: bool = False
    """Whether every replica had cores of its own."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """``host``, ``cpu``, ``cores``, ``gpu``, ``os``, ``load``: where the numbers come from."""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def step_seconds(self) -> list[float]:
        """Seconds per step, one sample per block: of the slowest rank, as a synchronous step ends with it."""
        blocks = zip(*(rank.blocks for rank in self.ranks), strict=True)
        return [max(block) / self.steps_per_block for block in blocks]

    @property
    def median_step_seconds(self) -> float:
        return statistics.median(self.step_seconds)

    @property
    def throughput(self) -> float | None:
        """Examples per second, from the median step; ``None`` where there is no time, or a :attr:`batch_problem`."""
        if self.global_batch_size is None or self.batch_problem or not self.median_step_seconds > 0:
            return None
        return self.global_batch_size / self.median_step_seconds

    @property
    def examples_per_step(self) -> int | None:
        """Rows that all replicas took in a step, as counted; ``None`` where a rank did not see its batches."""
        seen = [rank.examples for rank in self.ranks]
        return None if None in seen else sum(rows or 0 for rows in seen)

    @property
    def batch_problem(self) -> str:
        """Why it is not known how many examples a step takes: none were declared, or another number was counted."""
        declared, counted = self.global_batch_size, self.examples_per_step
        if declared is None:
            return "the global batch size is not known: give batch_per_replica= or global_batch_size="
        if counted is None or counted == declared:
            return ""
        return (
            f"{counted} examples were counted in a step where batch_per_replica= or global_batch_size= declares "
            f"{declared}: batch the data with run.global_batch_size, mind that there is enough of it for one batch, or "
            "declare what the program takes"
        )

    @property
    def measured_seconds(self) -> float:
        """Wall time within steady steps."""
        return sum(self.step_seconds) * self.steps_per_block

    def as_json(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts alone, with what is derived besides."""
        derived = {
            "step_seconds": self.step_seconds,
            "median_step_seconds": self.median_step_seconds,
            "throughput": self.throughput,
        }
        return {**asdict(self), "derived": derived}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        """The launch that :meth:`as_json` wrote, of this version or another: fields that are not known are left out.

        Each version of pytest-ddl is gated by its own, and one may have a counter that the other has not.
        """
        ranks = tuple(
            RankTiming(
                **{
                    **_known(RankTiming, rank),
                    "blocks": tuple(rank["blocks"]),
                    "remarks": tuple(rank.get("remarks", ())),
                    "energy": EnergyReading(**_known(EnergyReading, rank["energy"])),
                }
            )
            for rank in data["ranks"]
        )
        counted = _known(Counters, data["counters"])
        counted.update({name: tuple(counted.get(name, ())) for name in ("misplaced", "notes", "uncounted")})
        return cls(**{**_known(cls, data), "ranks": ranks, "counters": Counters(**counted)})


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
