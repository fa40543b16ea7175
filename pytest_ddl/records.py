"""What a training run left behind: plain values, one record per rank, merged into one per run.

Records are the only thing that crosses from the workers to the checks. They hold NumPy
arrays and built-in types alone, so that a check can be read, tested and run without
TensorFlow, and so that a record unpickles in a process that has never imported it.

Vocabulary: *step* 0 is the state at the first ``run.watch``; step ``k`` is the state after
the k-th training step. *replica* is the index in the global order of replicas
(``replica_id_in_sync_group``); *rank* is the index of a worker process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class VariableKind(str, Enum):
    """What role a watched variable plays, as far as the framework says."""

    TRAINABLE = "trainable"
    """Changed by the optimizer."""
    FROZEN = "frozen"
    """A weight of a layer with ``trainable=False``: no step may change it."""
    STATE = "state"
    """Non-trainable state that a step may change: BatchNormalization, EMA, seeds, counters."""
    SLOT = "slot"
    """State of the optimizer for one weight: momentum, first and second moments."""
    ITERATIONS = "iterations"
    """The optimizer's count of updates."""
    LEARNING_RATE = "learning-rate"
    """The optimizer's learning rate, evaluated where it is a schedule."""
    METRIC = "metric"
    """State of a metric."""


@dataclass(frozen=True)
class VariableRecord:
    """One watched variable, identified by its position among all that were watched."""

    index: int
    name: str
    """The program's own name, for example ``dense/kernel`` or ``SGD/momentum/dense/kernel``."""
    kind: VariableKind
    shape: tuple[int, ...]
    dtype: str
    """Name of the NumPy dtype (``bfloat16`` by its own name; its values are stored as float32)."""
    slot_of: int | None = None
    """For a SLOT, the index of the weight that it belongs to."""
    layout: LayoutRecord | None = None
    """Under ``model_parallel``."""
    aggregation: str = "none"
    synchronization: str = "auto"
    distributed: bool = False
    """True where every replica holds a component of its own."""
    since: int = 0
    """Steps completed when it had its initial value: 0 also if the first step created it, more if a later step did.

    A variable that was first watched after steps, or whose creation was not seen, has the steps completed by then.
    """

    @property
    def is_loss_scale(self) -> bool:
        """Whether it is, by its name, what a loss is multiplied with to keep its gradient in range."""
        named = any(part in self.name.lower() for part in ("loss_scale", "lossscale", "dynamic_scale"))
        return named and not self.shape and self.kind is VariableKind.STATE and "float" in self.dtype


Snapshot = Mapping[int, tuple[Array, ...]]
"""Variable index -> the components on this rank's replicas, in the order of replicas.

A variable that is not distributed has one component. A sharded (model parallel) variable has
one component too: its global value.
"""


@dataclass(frozen=True)
class BatchRecord:
    """What one replica consumed in one step."""

    replica: int
    size: int
    """Number of examples (leading dimension of the first tensor); 0 for an empty replica."""
    fingerprints: tuple[int, ...] | None = None
    """A 64-bit hash of each example's content, in order; ``None`` where it was not observed."""
    example_ids: tuple[int | str, ...] | None = None
    """Ids told by ``run.examples`` or found under ``"example_id"``."""
    loss: float | None = None
    """What the replica function returned, where that is a floating scalar."""


class GradientStage(str, Enum):
    """Where on its way from the loss to the variable a gradient was seen."""

    COMPUTED = "computed"
    """What ``GradientTape.gradient`` gave on a replica."""
    APPLIED = "applied"
    """What a replica handed to the optimizer, before the optimizer clips or aggregates."""


@dataclass(frozen=True)
class GradientRecord:
    """The gradients of one call on one replica in one step."""

    replica: int
    stage: GradientStage
    call: int
    """0 for the first call of this stage on this replica in this step."""
    values: Mapping[int, Array | None]
    """Variable index -> the dense gradient; ``None`` where the tape gave none."""
    sparse: frozenset[int] = frozenset()
    """Indices of variables whose gradient came as ``tf.IndexedSlices``."""


@dataclass(frozen=True)
class DrawRecord:
    """What one random operation of a replica function drew in one step."""

    replica: int
    position: int
    """Its place among the random operations of the replica function: the same on all replicas."""
    op: str
    """Type of the operation, for example ``StatelessRandomUniformV2``."""
    name: str
    digest: int
    """A 64-bit hash of the numbers drawn."""
    size: int
    """How many numbers were hashed, over all executions of the operation in the step."""
    shape: tuple[int, ...] = ()
    """Shape of the result, of the first execution."""
    dtype: str = ""
    distinct: int = 0
    """How many different numbers are among the first 256: what equal digests prove depends on it."""
    seeded: bool = False
    """Whether the program had set TensorFlow's global seed to another one than its run's."""
    nested: bool = False
    """Whether a loop, a branch or a function holds it: TensorFlow counts the operations of each from 0 to seed them."""


@dataclass(frozen=True)
class ReductionRecord:
    """One all-reduce of a step: what a replica put in, and what it got back."""

    replica: int
    position: int
    """Its place among the all-reduces of the replica function: the same on all replicas."""
    op: str
    """``SUM``, ``MEAN``."""
    dtype: str
    given: Array
    received: Array


@dataclass(frozen=True)
class CollectiveRecord:
    """One collective operation: executed by a rank, part of a graph, or asked for by a program."""

    kind: str
    """``all_reduce``, ``all_gather``, ``broadcast``, ``reduce_scatter``, ``all_to_all`` …"""
    op: str
    """The reduction as the operation has it, ``SUM`` (a mean is divided afterwards); empty where it is not known."""
    shape: tuple[int | None, ...] | None
    dtype: str
    where: str
    """``file:line`` in the program that asked for it, or the function whose graph holds it."""
    called: str = ""
    """``file:line`` in the program that called the ``tf.function`` that holds it; empty for the same line."""
    group: int = 0
    """TensorFlow's key of the group of devices: the k-th collective of a group meets the k-th of the other ranks."""
    step: int = 0
    """Steps completed before it."""
    parts: tuple[str, ...] = ()
    """What was packed into it, ``"3x4 float32"`` for each tensor; empty for a single tensor."""
    names: tuple[str, ...] = ()
    """Names of the tensors in the graph, as far as they have any: of the parts, or of the one."""


@dataclass(frozen=True)
class GraphRecord:
    """Facts about one traced function that called ``strategy.run``, counted in the graph that ran."""

    function: str
    step: int
    """The step in which it was traced."""
    nodes: int
    """Operations in the graph and in the functions that it calls."""
    signature: tuple[str, ...] = ()
    """Shapes and dtypes of what the function was given and of what it takes from iterators."""
    collectives: tuple[CollectiveRecord, ...] = ()
    """Per device: the collectives that one replica takes part in, in the order of the graph."""
    asked: tuple[CollectiveRecord, ...] = ()
    """One for each tensor that the program itself (not a framework) had reduced or gathered while it was traced;
    those of one call share ``group``, which counts the calls."""
    reduced_bytes: int = 0
    """Bytes that one replica puts into reductions in one execution; what has no static shape is not counted."""
    operations: Mapping[str, int] = field(default_factory=dict)
    """Operation type -> how often in one execution, for the types that a check asks about."""
    half: int = 0
    """The most operations in half precision that follow on each other, from any input to any output."""


@dataclass(frozen=True)
class WriteRecord:
    """A path that a rank wrote."""

    path: str
    """Absolute; within the run's folder relative to it."""
    api: str
    """The call that wrote: ``tf.train.Checkpoint.write``, ``Model.save``, ``open`` …"""
    step: int
    """Steps completed before it."""


@dataclass(frozen=True)
class RestoreRecord:
    """A file that a rank read back, which it had saved in the same attempt."""

    path: str
    api: str
    step: int
    """Steps completed before it."""
    compared: int
    """Variables that were compared with their values when the file was saved."""
    lost: tuple[str, ...] = ()
    """Names of variables that are not what they were when the file was saved."""
    absent: tuple[str, ...] = ()
    """What was to be restored and is not in the file."""


@dataclass(frozen=True)
class LayoutRecord:
    """How a model parallel variable is laid out over the mesh."""

    declared: tuple[str, ...] | None
    """Sharding spec per dimension that ``run.layout_map`` asks for (``"unsharded"`` or a mesh dimension)."""
    actual: tuple[str, ...]
    shard_shape: tuple[int, ...]
    """Shape of the shard on the first device."""
    mesh: Mapping[str, int]
    """Mesh dimension -> number of devices."""
    replicas_equal: bool = True
    """Whether all devices that ought to hold the same part hold the same bits."""


@dataclass(frozen=True)
class StepRecord:
    """The state after one global step, as one rank saw it."""

    index: int
    """1 for the first step."""
    loss: float | None
    """The loss that the program reported for this step."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Further values that the program recorded by name, and metrics shown by ``fit``."""
    batches: tuple[BatchRecord, ...] = ()
    """One per local replica and call of ``strategy.run``; empty where it was not observed."""
    snapshot: Snapshot = field(default_factory=dict)
    own: Snapshot | None = None
    """Values that the step itself left behind, if the snapshot may hold later changes."""
    traces: int | None = None
    """How often the step function had been traced up to here."""
    gradients: tuple[GradientRecord, ...] = ()
    """Per local replica, stage and call; empty where gradients were not observed."""
    draws: tuple[DrawRecord, ...] = ()
    reductions: tuple[ReductionRecord, ...] = ()
    eager: bool | None = None
    """Whether ``strategy.run`` was called outside any ``tf.function``; ``None`` where it was not called."""


@dataclass(frozen=True)
class ErrorRecord:
    """An exception of the training function on one rank, or the death of the rank."""

    type: str
    """Qualified name of the exception's class; ``"died"``, ``"deadline"``; ``"stopped"`` after another rank failed;
    ``"stuck"`` where the logs of collectives prove that the rank waits for ever."""
    message: str
    traceback: str
    step: int
    """The last step that this rank had completed."""
    phase: str = "train"
    """``train``, ``save``, ``restore``, ``evaluate``, ``start`` …"""
    output: str = ""
    """The tail of what the rank printed."""
    file: str = ""
    """The file of the program's frame in which the exception was raised; empty if no frame is the program's."""
    line: int = 0
    function: str = ""
    source: str = ""
    """The text of that line."""


@dataclass(frozen=True)
class LayerRecord:
    """A layer whose kind decides what a correct distributed run may do differently."""

    name: str
    type: str
    """Class name, for example ``BatchNormalization`` or ``Dropout``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The facts that matter: ``synchronized``, ``rate``, ``trainable`` …"""


@dataclass(frozen=True)
class OptimizerRecord:
    """The settings of a watched optimizer from which causes can be recomputed."""

    type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``learning_rate``, ``momentum``, ``clipnorm``, ``clipvalue``, ``global_clipnorm``, ``weight_decay`` …"""


@dataclass(frozen=True)
class CallSite:
    """A place of the program that trains with ``run.steps``, ``run.batches`` or ``run.fit`` under a limit of steps."""

    method: str
    trains: str
    """The code that it runs: where a step function is defined, or the class of a model."""
    frames: tuple[tuple[str, int, int], ...]
    """``(file, line, instruction)``, the innermost first."""
    limit: int


@dataclass(frozen=True)
class RankRecord:
    """Everything one rank recorded; returned by the worker, also after an exception."""

    rank: int
    task: str
    """``worker:0``, ``chief:0`` …; ``local`` for a strategy of one process."""
    replicas: tuple[int, ...]
    """Global ids of this rank's replicas."""
    variables: tuple[VariableRecord, ...] = ()
    initial: Snapshot = field(default_factory=dict)
    """Values when training began, or when a step created the variable; see :attr:`VariableRecord.since`."""
    steps: tuple[StepRecord, ...] = ()
    final: Snapshot | None = None
    """Values when the program ended, of the variables that it changed after its loop; ``None`` if it did not end."""
    cut_off: tuple[int, ...] = ()
    """Indices of the variables that the step changed in which the data ended: it ran in part and is not recorded."""
    layers: tuple[LayerRecord, ...] = ()
    draws_observed: bool = False
    """Whether every random operation of the replica functions is among the draws of the steps."""
    optimizers: tuple[OptimizerRecord, ...] = ()
    results: Mapping[str, Any] = field(default_factory=dict)
    """What ``run.fit``, ``run.evaluate`` and ``run.predict`` returned, by name (``fit``, ``evaluate``, ``predict``)."""
    result_steps: Mapping[str, int] = field(default_factory=dict)
    """Name of a result -> steps completed before it."""
    error: ErrorRecord | None = None
    notes: tuple[str, ...] = ()
    """What could not be recorded, and why; a check that needs it says so."""
    versions: Mapping[str, str] = field(default_factory=dict)
    resumed: Mapping[int, Snapshot] = field(default_factory=dict)
    """Step k -> values when training went on after an interruption that followed step k."""
    asynchronous: bool = False
    """Steps ran concurrently (``run.steps(concurrent=True)``): in between, variables belong to no step."""
    collectives: tuple[CollectiveRecord, ...] = ()
    """What this rank of several executed, in order; of the latest attempt. Empty for a strategy of one process."""
    graphs: tuple[GraphRecord, ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    restores: tuple[RestoreRecord, ...] = ()
    casts: Mapping[str, int] = field(default_factory=dict)
    """``float16``, ``bfloat16`` -> casts to it within ``strategy.run``: once for a trace, or in every eager step."""
    casts_around: Mapping[str, int] = field(default_factory=dict)
    """The same for casts outside ``strategy.run``: in what the program does with the loss, or with its data."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the set-up that LINT judges: ``num_replicas_in_sync``, ``cluster`` …; ``thawed``: the indices of
    FROZEN variables that became trainable later; ``unwatched``: the names of variables that were trained and not
    watched; ``trained_before``: steps that ran before the first watch; ``widened``: the Keras dtype policies that a
    float64 run replaced; ``call_sites``: under a limit of steps, :class:`CallSite` -> whether it could run."""

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def failed(self) -> bool:
        """Whether the other ranks need not be waited for."""
        return self.error is not None


@dataclass(frozen=True)
class TrainingRecord:
    """One run of a training function under one strategy, all ranks together."""

    strategy: str
    """The variant that ran, for example ``mirrored[replicas=2]``."""
    num_replicas: int
    ranks: tuple[RankRecord, ...]
    global_batch_size: int | None
    precision: str
    """``float64`` or ``native``."""
    seed: int
    perturbation: int = 0
    """0 for the program as it is; p > 0 where weights and data were moved by one ulp (noise run p)."""
    seconds: float = 0.0
    neutralised: tuple[str, ...] = ()
    """What was switched off in the run, of ``random`` and ``normalization``: it explains no difference then.

    ``low`` says that random numbers were replaced by a low constant.
    """
    taken_over: tuple[int, ...] = ()
    """Steps after which a reference went on with the values that the run under the strategy had then."""
    refused: ErrorRecord | None = None
    """Of a reference that ran without a strategy: what the same program raised under ``OneDeviceStrategy``."""

    @property
    def variables(self) -> tuple[VariableRecord, ...]:
        """The watched variables, as rank 0 named them."""
        return self.ranks[0].variables if self.ranks else ()

    @property
    def num_steps(self) -> int:
        """Steps that every rank completed."""
        return min((rank.num_steps for rank in self.ranks), default=0)

    @property
    def errors(self) -> tuple[tuple[RankRecord, ErrorRecord], ...]:
        return tuple((rank, rank.error) for rank in self.ranks if rank.error is not None)

    def components(self, index: int, step: int) -> Iterator[tuple[RankRecord, int, Array]]:
        """Yield ``(rank, replica, value)`` for every component of a variable after a step.

        A variable that is not distributed yields one component per rank, under the rank's
        first replica.
        """
        for rank in self.ranks:
            snapshot = rank.initial if step == 0 else rank.steps[step - 1].snapshot
            for position, value in enumerate(snapshot.get(index, ())):
                replica = rank.replicas[position] if position < len(rank.replicas) else position
                yield rank, replica, value

    def value(self, index: int, step: int) -> Array | None:
        """The first component of a variable after a step, or ``None`` if it was not recorded."""
        for _rank, _replica, value in self.components(index, step):
            return np.asarray(value)
        return None

    def batches(self, step: int) -> tuple[BatchRecord, ...]:
        """What all replicas of all ranks consumed in a step, by replica."""
        found = [batch for rank in self.ranks for batch in rank.steps[step - 1].batches]
        return tuple(sorted(found, key=lambda batch: batch.replica))
