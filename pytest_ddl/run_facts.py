"""Facts about a run on one rank that single checks and diagnoses ask for: part of :mod:`pytest_ddl.records`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

from pytest_ddl.step_records import Array, GradientStage, StepRecord

Call = tuple[Array, ...]
"""Tensors that one call of a replica function is given. Scalars are left out."""
ReadsOfCall = Mapping[int | str, tuple[Array, ...]]
"""Values that one call reads, in order: by the index of a watched weight, or by the name of another variable."""
GradientsOfCalls = dict[int, list[tuple[GradientStage, int, dict[int, Array | None]]]]
"""Number of a call -> its gradients by variable, in the order of the program.

The integer is the number of the place in a traced function that computes or applies them."""


@dataclass(frozen=True)
class CallSite:
    """Place in the program that trains with ``run.steps``, ``run.batches`` or ``run.fit`` under a limit of steps."""

    method: str
    trains: str
    """Code that it runs: ``file:line`` of the definition of a step function, or the class of a model."""
    frames: tuple[tuple[str, int, int], ...]
    """``(file, line, instruction)`` of each frame, the innermost first."""
    limit: int


class FailedCell(NamedTuple):
    """Cell of a notebook that raised an exception."""

    cell: int
    error: str
    """Name of the exception's class."""
    place: str
    """File and line in the code of all cells."""
    text: str
    """Class and message of the exception."""


@dataclass(frozen=True)
class ScriptRecord:
    """Record of a script that was run as it is."""

    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Heading -> objects, loops and replacements, in the order in which the script used them."""
    failed: tuple[FailedCell, ...] = ()
    counts_replicas: bool = False
    """True if the script reads the number of replicas."""
    told: tuple[str, ...] = ()
    """Places at which the script got the number of the strategy in place of its own."""
    cut: bool = False
    """True if a dataset may have more batches than the script gets."""
    unrun: str = ""
    """Place of training that has not run, because the script was ended before; empty if there is none."""


class RunFacts(TypedDict, total=False):
    """Facts that observers collect. A fact that is absent was not seen. A new one needs a line here."""

    # The set-up, which LINT and PS judge
    replicas: int
    """Number of replicas of the run's strategy."""
    own_strategies: Sequence[Mapping[str, Any]]
    """Strategies that the program created and used: ``type``, ``replicas`` and ``used``."""
    dispatched: bool
    """True if the strategy of the run was used to run anything."""
    tf_config: tuple[int | None, int | None]
    """Numbers of training tasks in ``TF_CONFIG`` before and after, if the program changed it."""
    device: str
    """Kind of device, if it is not ``cpu``."""
    not_deterministic: str
    """First line of the error with which TensorFlow refused to be deterministic."""
    unmatched_layout_rules: Sequence[str]
    """Rules of ``run.layout_map`` that match no variable."""

    # Closures of a coordinator
    scheduled: int
    workers: int
    own_schedule: bool
    """True if the program itself scheduled several closures at a time, so that its recorded steps are not closures."""
    unfinished: bool
    """True if closures still ran when the program recorded its last step, and it waited for them neither then nor
    later. A later wait excuses all steps but the only one."""
    data_of_workers: bool
    """True if a coordinator has a function make the whole dataset on each worker."""
    calls: tuple[Call, ...]
    """Tensors of each call of a replica function, if they were asked for."""
    reads: tuple[ReadsOfCall, ...]
    assigned: tuple[ReadsOfCall, ...]
    """Values that each call reads and assigns, in the order of the calls."""
    scalars: tuple[tuple[float, ...], ...]
    """Scalars that each call was given."""
    hidden: tuple[int | str, ...]
    repeated: tuple[int | str, ...]
    """Keys of variables that calls also read elsewhere, or several times."""
    takes_more: bool
    """True if a call computes from other tensors than its arguments."""
    gradients_of_calls: GradientsOfCalls
    rewritten: Mapping[str, str]
    """Name of a variable, not a weight -> line at which a closure computes it from its old value."""
    meanwhile: Mapping[str, tuple[int, str]]
    """Name of a variable that the program assigns while closures run -> its index, or -1 if it is not watched, and the
    line."""

    # Loops, and what lies outside of them
    no_loop: bool
    """True if no loop or epoch began."""
    epochs: Mapping[int, int]
    """Epoch -> steps before it."""
    epochs_as_steps: bool
    limit: int | None
    """Limit of steps of a run whose epochs are recorded as steps."""
    call_sites: Mapping[CallSite, bool]
    """Place -> true if it could run before the limit of steps was reached."""
    cut: Sequence[int]
    cut_fits: Sequence[tuple[Any, Any]]
    """Lengths that the program gave to loops and fits which the limit of steps ended."""
    late: StepRecord
    """Gradients and batches after the last step, for one device and schedules of the program."""
    trained_before: int
    """Number of steps before the first watch."""
    unwatched: Sequence[str]
    """Names of trained variables that nobody watched."""
    between_steps: Sequence[str]
    """Names of variables that a run which ended by an error had trained in no recorded step."""
    thawed: Sequence[int]
    """Indices of FROZEN variables that became trainable later."""

    # Keras
    fitted: Mapping[str, bool]
    """Name -> true if ``run.fit`` used this method of the program: ``train_step`` or ``loss_function``."""
    widened: Sequence[str]
    """Half precision policies of Keras that were replaced."""
    trains_on_batches: bool
    calls_average_loss: bool
    """True if ``tf.nn.compute_average_loss`` gave a loss that the program differentiates."""

    # Arithmetic, random numbers and files
    single: tuple[int, Sequence[int]]
    """Number of casts by which float32 may enter a run in float64, and keys of such constants."""
    narrowed: bool
    """True if a step of a run in float64 casts a number to float32, which rounds it."""
    unseeded: Sequence[str]
    """Generators of the host that the program did not seed."""
    drew_unseen: bool
    draws_unseen: Mapping[int, tuple[str, tuple[int, ...]]]
    """Position of a random operation that was not recorded -> its type and shape."""
    generators: Mapping[int, tuple[str, ...]]
    """Step -> digest of the state of each ``tf.random.Generator``."""
    failed_saves: Sequence[str]
    """Paths that a call tried to save to, and failed."""

    # Lines of the program, for messages
    lines: dict[str, tuple[str, ...]]
    """Kind of :class:`~pytest_ddl.training.lines.Lines` -> its lines."""
    shards: Sequence[tuple[int, int]]
    """Number of shards and index of each ``Dataset.shard`` in a dataset that the strategy shards again."""
    parts: Sequence[tuple[int, int]]
    """Number of shards and index of each ``Dataset.shard`` in any dataset that is distributed. Absent if none is."""
    overwritten: Mapping[str, str]
    """Attribute of an object that several replicas set -> line."""
    script: ScriptRecord
