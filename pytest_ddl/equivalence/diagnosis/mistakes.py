"""Exceptions whose message identifies the mistake of the program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_ddl.records import ErrorRecord


@dataclass(frozen=True)
class Mistake:
    """Mistake that a framework detects itself, and the message that identifies it."""

    pattern: str
    """Regular expression searched for in the exception's message."""
    cause: str
    fix: str | None = None
    """Advice, if that of the cause does not fit."""


MISTAKES: tuple[Mistake, ...] = (
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
        "Call optimizer.apply_gradients (and get_replica_context()) inside the function that strategy.run calls, "
        "not around it: there is no replica in strategy.scope() alone.",
    ),
    Mistake(
        r"(fewer|less) (files|shards?).{0,60}workers?|less than the number of shards|"
        r"not enough files|Did not find a shardable source|number of files.{0,80}(shards|workers)",
        "worker-raised",
        "Fewer files than workers cannot be sharded by file: write at least one file per worker, or set "
        "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA.",
    ),
    Mistake(
        r"(OwnedIterator|DistributedIterator\w*)( object|'|\b.{0,40}(convert|unsupported|Tensor))|"
        r"convert.{0,80}(OwnedIterator|DistributedIterator)",
        "worker-raised",
        "The train_step of run.steps gets an iterator, not a batch: begin it with batch = next(iterator).",
    ),
)


def known_mistake(error: ErrorRecord) -> Mistake | None:
    """Return the mistake that an exception reports, or ``None``."""
    for mistake in MISTAKES:
        if re.search(mistake.pattern, error.message, re.DOTALL | re.IGNORECASE):
            return mistake
    return None
