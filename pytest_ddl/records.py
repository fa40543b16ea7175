"""Records of a training run: one record per rank, merged into one record per run.

Workers send only records to the checks. Records hold only NumPy arrays and plain values, so checks need no TensorFlow.

Vocabulary: *step* 0 is the state at the first ``run.watch``, and step ``k`` is the state after the k-th training step.
*replica* is the index in the global order of replicas (``replica_id_in_sync_group``). *rank* is the index of a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from pytest_ddl.notes import Note
from pytest_ddl.run_facts import CallSite as CallSite
from pytest_ddl.run_facts import RunFacts
from pytest_ddl.step_records import Array as Array
from pytest_ddl.step_records import BatchRecord as BatchRecord
from pytest_ddl.step_records import DrawRecord as DrawRecord
from pytest_ddl.step_records import GradientRecord as GradientRecord
from pytest_ddl.step_records import GradientStage as GradientStage
from pytest_ddl.step_records import GradientSum as GradientSum
from pytest_ddl.step_records import ReductionRecord as ReductionRecord
from pytest_ddl.step_records import Snapshot as Snapshot
from pytest_ddl.step_records import StepRecord as StepRecord
from pytest_ddl.strategies.spec import SYNCHRONOUS, Capabilities


class VariableKind(str, Enum):
    """Role of a watched variable, as far as the framework reports it."""

    TRAINABLE = "trainable"
    """A weight that the optimizer changes."""
    FROZEN = "frozen"
    """A weight of a layer with ``trainable=False``: no step may change it."""
    STATE = "state"
    """Non-trainable state that a step may change: BatchNormalization, EMA, seeds, counters."""
    SLOT = "slot"
    """State of the optimizer for one weight: momentum, first and second moments."""
    ITERATIONS = "iterations"
    """The optimizer's count of updates."""
    LEARNING_RATE = "learning-rate"
    """The optimizer's learning rate; the current value of a schedule."""
    METRIC = "metric"
    """State of a metric."""


@dataclass(frozen=True)
class VariableRecord:
    """Description of one watched variable, identified by its position among all watched variables."""

    index: int
    name: str
    """Name in the program, for example ``dense/kernel`` or ``SGD/momentum/dense/kernel``."""
    kind: VariableKind
    shape: tuple[int, ...]
    dtype: str
    """Name of the dtype. Values of a ``bfloat16`` variable are stored as float32."""
    slot_of: int | None = None
    """Index of the weight that a SLOT belongs to."""
    layout: LayoutRecord | None = None  # over the mesh; only under model_parallel
    aggregation: str = "none"
    synchronization: str = "auto"
    distributed: bool = False
    """True if every replica holds a component of its own."""
    since: int = 0
    """Steps completed when its initial value was recorded. A step that is seen to create it does not count."""
    of_keras: bool = False  # True for a variable of Keras 3, which layers make by add_weight

    @property
    def is_loss_scale(self) -> bool:
        """True if its name is that of a loss scale: the factor on a loss that keeps gradients in a dtype's range."""
        named = any(part in self.name.lower() for part in ("loss_scale", "lossscale", "dynamic_scale"))
        return named and not self.shape and self.kind is VariableKind.STATE and "float" in self.dtype


@dataclass(frozen=True)
class CollectiveRecord:
    """One collective operation: executed by a rank, part of a graph, or requested by a program."""

    kind: str
    """``all_reduce``, ``all_gather``, ``broadcast``, ``reduce_scatter``, ``all_to_all`` …"""
    op: str
    """Reduction of the operation; ``SUM`` also for a mean, which is divided afterwards. Empty if it is not known."""
    shape: tuple[int | None, ...] | None
    dtype: str
    where: str
    """``file:line`` in the program that requested it, or name of the function whose graph contains it."""
    called: str = ""
    """``file:line`` in the program that called the ``tf.function`` around it; empty if it equals ``where``."""
    group: int = 0
    """TensorFlow's key of the group of devices. The k-th collective of a group joins the k-th of the other ranks."""
    step: int = 0
    """Steps completed before it."""
    parts: tuple[str, ...] = ()
    """Tensors that were packed into it, each as ``"3x4 float32"``; empty for a single tensor."""
    names: tuple[str, ...] = ()
    """Names in the graph of the packed tensors, or of the single tensor, as far as they have names."""


@dataclass(frozen=True)
class GraphRecord:
    """Facts about one traced function that called ``strategy.run``, counted in its graph."""

    function: str
    step: int
    """Step in which it was traced."""
    nodes: int
    """Number of operations in the graph and in the functions that it calls."""
    signature: tuple[str, ...] = ()
    """Shapes and dtypes of the arguments of the function and of the elements that it takes from iterators."""
    collectives: tuple[CollectiveRecord, ...] = ()
    """Collectives that one replica takes part in, in the order of the graph."""
    asked: tuple[CollectiveRecord, ...] = ()
    """One for each tensor that the program itself reduces or gathers here. ``group`` is the index of the call."""
    reduced_bytes: int = 0
    """Bytes that one replica puts into reductions in one execution. Tensors without a static shape are not counted."""
    operations: Mapping[str, int] = field(default_factory=dict)
    """Operation type -> count in the graph and its functions, for the types that a check needs."""
    half: int = 0
    """Number of half precision operations on the longest path from an input to an output."""


@dataclass(frozen=True)
class WriteRecord:
    """Path that a rank wrote."""

    path: str
    """Absolute path, or relative to the folder of the run if inside it."""
    api: str
    """Function that wrote: ``tf.train.Checkpoint.write``, ``Model.save``, ``open`` …"""
    step: int
    """Steps completed before it."""


@dataclass(frozen=True)
class RestoreRecord:
    """File that a rank saved and restored later in the same attempt."""

    path: str
    api: str
    step: int
    """Steps completed before it."""
    compared: int
    """Number of variables that were compared with their values at the time when the file was saved."""
    lost: tuple[str, ...] = ()
    """Names of variables whose values differ from those at the time when the file was saved."""
    absent: tuple[str, ...] = ()
    """Names of parts that the program wanted to restore and that are not in the file."""


@dataclass(frozen=True)
class LayoutRecord:
    """Layout of a model parallel variable over the mesh."""

    declared: tuple[str, ...] | None
    """Sharding spec per dimension in ``run.layout_map``: ``"unsharded"`` or a mesh dimension."""
    actual: tuple[str, ...]
    shard_shape: tuple[int, ...]
    """Shape of the shard on the first device."""
    mesh: Mapping[str, int]
    """Mesh dimension -> number of devices."""
    replicas_equal: bool = True
    """True if the devices that should hold the same part hold the same bits."""


@dataclass(frozen=True)
class ErrorRecord:
    """Exception of the training function on one rank, or death of the rank."""

    type: str
    """Qualified name of the exception's class; or ``"died"``, ``"deadline"``, ``"stopped"`` (after another failed) or
    ``"stuck"`` (the logs of collectives prove that it waits forever)."""
    message: str
    traceback: str
    step: int
    """Last step that this rank had completed."""
    phase: str = "train"
    """``train``, ``save``, ``restore``, ``evaluate``, ``start`` …"""
    output: str = ""
    """Last part of the output of the rank."""
    file: str = ""
    """File of the program's frame in which the exception was raised; empty if no frame belongs to the program."""
    line: int = 0
    function: str = ""
    source: str = ""
    """Text of that line."""
    wants_file: bool = False
    """True if a file or folder that the program named does not exist."""


@dataclass(frozen=True)
class LayerRecord:
    """Layer whose type decides which differences a correct distributed run may show."""

    name: str
    type: str
    """Class name, for example ``BatchNormalization`` or ``Dropout``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that decide it: ``synchronized``, ``rate``, ``trainable`` …"""


@dataclass(frozen=True)
class OptimizerRecord:
    """Settings of a watched optimizer, from which the effect of a cause can be recomputed."""

    type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``learning_rate``, ``momentum``, ``clipnorm``, ``clipvalue``, ``global_clipnorm``, ``weight_decay`` …"""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """The settings that the program has changed by its end. Rates are variables, and not here."""


@dataclass(frozen=True)
class RankRecord:
    """Everything that one rank recorded; the worker returns it also after an exception."""

    rank: int
    task: str
    """``worker:0``, ``chief:0`` …"""
    replicas: tuple[int, ...]
    """Global ids of this rank's replicas."""
    variables: tuple[VariableRecord, ...] = ()
    initial: Snapshot = field(default_factory=dict)
    """Values when training began or when a step created the variable; see :attr:`VariableRecord.since`."""
    steps: tuple[StepRecord, ...] = ()
    final: Snapshot | None = None
    """Values at the end of the program, of variables that it changed after its loop; ``None`` if it did not end."""
    cut_off: tuple[int, ...] = ()
    """Indices of variables that an unfinished last step changed. The data ended in that step; it is not recorded."""
    layers: tuple[LayerRecord, ...] = ()
    draws_observed: bool = False
    """True if the draws of the steps include every random operation of the replica functions."""
    optimizers: tuple[OptimizerRecord, ...] = ()
    results: Mapping[str, Any] = field(default_factory=dict)
    """Results of ``run.fit``, ``run.evaluate`` and ``run.predict``, by name (``fit``, ``evaluate``, ``predict``)."""
    result_steps: Mapping[str, int] = field(default_factory=dict)
    """Name of a result -> steps completed before it."""
    error: ErrorRecord | None = None
    notes: tuple[Note, ...] = ()
    """Notes on what could not be recorded, and why; a check that needs it reports the note."""
    versions: Mapping[str, str] = field(default_factory=dict)
    resumed: Mapping[int, Snapshot] = field(default_factory=dict)
    """Step k -> values when training resumed after an interruption that followed step k."""
    asynchronous: bool = False
    """True if steps ran concurrently (``run.steps(concurrent=True)``). Variables then belong to no step in between."""
    collectives: tuple[CollectiveRecord, ...] = ()
    """Collectives that the rank executed in the latest attempt, in order. Empty for a strategy with one process."""
    graphs: tuple[GraphRecord, ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    restores: tuple[RestoreRecord, ...] = ()
    casts: Mapping[str, int] = field(default_factory=dict)
    """``float16`` or ``bfloat16`` -> casts to it in ``strategy.run``, counted once per trace or in every eager step."""
    casts_around: Mapping[str, int] = field(default_factory=dict)
    """The same for casts outside ``strategy.run``, for example casts of the loss or of the data."""
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def failed(self) -> bool:
        """True if the training function raised an error, or the rank died."""
        return self.error is not None


@dataclass(frozen=True)
class TrainingRecord:
    """Record of one run of a training function under one strategy, with all ranks."""

    strategy: str
    """Variant that ran, for example ``mirrored[replicas=2]``."""
    num_replicas: int
    ranks: tuple[RankRecord, ...]
    global_batch_size: int | None
    precision: str
    """``float64``, ``float32`` or ``native``."""
    seed: int
    perturbation: int = 0
    """0 for the unchanged program; p > 0 for noise run p, in which weights and data were moved by one ulp."""
    seconds: float = 0.0
    neutralized: tuple[str, ...] = ()
    """Settings of :mod:`pytest_ddl.training.neutral` by which randomness and normalization were switched off."""
    taken_over: tuple[int, ...] = ()
    """Steps after which a reference went on with the values that the run under the strategy had then."""
    capabilities: Capabilities = SYNCHRONOUS
    """Capabilities that the definition of the strategy declares."""
    refused: ErrorRecord | None = None
    """Error that the program raised under ``OneDeviceStrategy``, if the reference therefore ran without a strategy."""

    @property
    def variables(self) -> tuple[VariableRecord, ...]:
        """The watched variables, as rank 0 recorded them."""
        return self.ranks[0].variables if self.ranks else ()

    @property
    def num_steps(self) -> int:
        """Number of steps that every rank completed."""
        return min((rank.num_steps for rank in self.ranks), default=0)

    @property
    def errors(self) -> tuple[tuple[RankRecord, ErrorRecord], ...]:
        return tuple((rank, rank.error) for rank in self.ranks if rank.error is not None)

    def components(self, index: int, step: int) -> Iterator[tuple[RankRecord, int, Array]]:
        """Yield ``(rank, replica, value)`` for every component of a variable after a step.

        A variable that is not distributed has one component per rank, yielded with the rank's first replica.
        """
        for rank in self.ranks:
            snapshot = rank.initial if step == 0 else rank.steps[step - 1].snapshot
            for position, value in enumerate(snapshot.get(index, ())):
                replica = rank.replicas[position] if position < len(rank.replicas) else position
                yield rank, replica, value

    def value(self, index: int, step: int) -> Array | None:
        """Return the first component of a variable after a step, or ``None`` if it was not recorded."""
        first = next(self.components(index, step), None)
        return None if first is None else np.asarray(first[2])

    def batches(self, step: int) -> tuple[BatchRecord, ...]:
        """Return the batches that all replicas of all ranks consumed in a step, by replica."""
        recorded = [batch for rank in self.ranks for batch in rank.steps[step - 1].batches]
        return tuple(sorted(recorded, key=lambda batch: batch.replica))
