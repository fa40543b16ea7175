"""Compare a training function with one device, outside pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ddl.cluster.cluster import ClusterError
from pytest_ddl.equivalence.runs.comparer import Comparer
from pytest_ddl.equivalence.runs.question import ArgumentError, Question, TrainFunction

if TYPE_CHECKING:
    from pytest_ddl.equivalence.verdict.report import Report
    from pytest_ddl.harness import Harness


def check_training(train: TrainFunction, strategy: str = "mirrored", *, device: str = "auto", **asked: Any) -> Report:
    """Compare ``train(run)`` under a strategy with the same function on one device.

    :func:`pytest_ddl.check_training` is this function with faults, and describes all arguments.

    :param asked: further fields of :class:`Question`, by name.
    :raises ArgumentError: for an argument that cannot be used.
    :raises ClusterError: if the strategy cannot be built on this machine.
    """
    harness, question = question_of(train, strategy, device, **asked)
    return Comparer(harness).compare(question)


def question_of(train: TrainFunction, strategy: str, device: str, **asked: Any) -> tuple[Harness, Question]:
    """Return the question that the arguments of :func:`check_training` ask, and the clusters of this process.

    :raises ArgumentError: if the strategy is not named.
    :raises ClusterError: if the strategy cannot be built on this machine.
    """
    from pytest_ddl.harness import process_harness
    from pytest_ddl.items.selection import DdlMark

    if not isinstance(strategy, str):
        raise ArgumentError(f"strategy={strategy!r} must be the name of a strategy or variant, for example 'mirrored'")
    harness = process_harness()
    spec = harness.registry.parse_variant(strategy)
    mark = DdlMark(device=device, timeout=asked.get("timeout"))
    reason = harness.unavailable(spec, mark)
    if reason is not None:
        raise ClusterError(f"strategy={strategy!r} cannot run here: {reason}")
    return harness, Question(train, spec, mark, **asked)
