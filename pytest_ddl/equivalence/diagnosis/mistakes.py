"""Exceptions of TensorFlow and Keras that identify the mistake of the program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_ddl.equivalence.causes.cause import Fix
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.records import ErrorRecord
from pytest_ddl.tracebacks import frames_in, is_own, package_of


@dataclass(frozen=True)
class Mistake:
    """Mistake that a framework detects itself, and the exception that identifies it."""

    pattern: str
    """Regular expression searched for in the exception's message."""
    cause: str
    fix: Fix | None = None
    """Advice, if that of the cause does not fit."""
    through: str = ""
    """Regular expression that must match ``FILE:FUNCTION`` of a library that the last line of the program called."""


KERAS_LOOP_IN_RUN = Mistake(
    r"requires being in cross-replica context|next\(iterator\) should be called from outside of replica_fn",
    "worker-raised",
    SPECIAL["keras-loop-in-run"],
    # By default Keras removes its own frames from a traceback, except that of error_handler.
    through=r"[/\\](keras|tf_keras)[/\\].*:(error_handler|_maybe_symbolic_build|fit|evaluate|predict|\w+_on_batch)$",
)
VALUE_OF_EVERY_REPLICA = Mistake(
    r"using a PerReplica object while not inside a replica context|"
    r"\(of type <class '[\w.]*\bPerReplica'>\)|Unrecognized data type: \w+=PerReplica\b|"
    r"(convert a value \(|unsupported type \(<class '[\w.]*)PerReplica\b|"
    r"'PerReplica' object (has no attribute|is not|does not|cannot)|object of type 'PerReplica'|not '?PerReplica\b|"
    r"unsupported operand type\(s\) for [^\n]{0,60}'PerReplica'",
    "worker-raised",
    SPECIAL["value-of-every-replica"],
)
STATE_OF_THE_GLOBAL_BATCH = Mistake(
    r"If an RNN is stateful, the batch size of the input sequences must be the same",
    "worker-raised",
    SPECIAL["stateful-layer"],
    through=r"[/\\]keras[/\\].*",
)
DATASET_OF_THE_COORDINATOR = Mistake(
    r"Failed copying input tensor.{0,800}Unable to parse tensor proto",
    "worker-raised",
    SPECIAL["dataset-of-the-coordinator"],
)

MISTAKES: tuple[Mistake, ...] = (
    # Before the mistakes in an update, whose messages also speak of the cross-replica context.
    KERAS_LOOP_IN_RUN,
    Mistake(
        r"not created in the distribution strategy scope|"
        r"created (outside|under|inside).{0,80}(strategy|scope)|"
        r"must only be passed a variable created in this|"
        r"Mixing different tf\.distribute\.Strategy objects|"
        r"Need to be inside .{0,10}with strategy\.scope\(\)|"
        r"(model|optimizer|layer|metric|variable)s?.{0,80}outside.{0,40}(strategy|scope)|"
        r"`?(_?distributed_container|extended\.update)`?.{0,120}(not a distributed|non-distributed)|"
        r"variable.{0,120}is not part of (this|the) .{0,40}strategy",
        "variable-outside-scope",
    ),
    Mistake(r"Collective ops (are already configured|must be configured at program startup)", "cluster-misconfigured"),
    Mistake(
        r"'NoneType' object has no attribute 'merge_call'|"
        r"apply_gradients\(?\)? cannot be called in cross-replica context|"
        r"(apply_gradients|merge_call|all_reduce).{0,80}cross-replica context",
        "worker-raised",
        SPECIAL["update-outside-of-run"],
    ),
    # A variable of the program itself. That of Keras is a limitation.
    Mistake(
        r"must specify an aggregation method to update an? \w+ in Replica Context",
        "worker-raised",
        SPECIAL["assigned-without-aggregation"],
    ),
    Mistake(
        r"(fewer|less) (files|shards?).{0,60}workers?|less than the number of shards|"
        r"not enough files|Did not find a shardable source|number of files.{0,80}(shards|workers)",
        "worker-raised",
        SPECIAL["fewer-files-than-workers"],
    ),
    Mistake(
        r"(OwnedIterator|DistributedIterator\w*)( object|'|\b.{0,40}(convert|unsupported|Tensor))|"
        r"convert.{0,80}(OwnedIterator|DistributedIterator)",
        "worker-raised",
        SPECIAL["iterator-for-a-batch"],
    ),
    VALUE_OF_EVERY_REPLICA,
    STATE_OF_THE_GLOBAL_BATCH,
    DATASET_OF_THE_COORDINATOR,
)


def known_mistake(error: ErrorRecord) -> Mistake | None:
    """Return the mistake that an exception reports, or ``None``."""
    called = _called_by_the_program(error)
    for mistake in MISTAKES:
        if not re.search(mistake.pattern, error.message, re.DOTALL | re.IGNORECASE):
            continue
        if not mistake.through or any(re.search(mistake.through, function) for function in called):
            return mistake
    return None


def _called_by_the_program(error: ErrorRecord) -> list[str]:
    """Return the functions of libraries that the last line of the program had called, as ``FILE:FUNCTION``."""
    frames = frames_in(error.traceback)
    own = [place for place, frame in enumerate(frames) if is_own(frame.file, package_of(error.file))]
    return [f"{frame.file}:{frame.function}" for frame in frames[own[-1] + 1 if own else 0 :]]
