"""Compare an interrupted run with the uninterrupted one directly: its numbers, its random numbers and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.checks.resume import CHECK as RESUME
from pytest_ddl.equivalence.evidence.arrays import difference, same_parts
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import DrawRecord, RankRecord, Snapshot, StepRecord, TrainingRecord, VariableKind


def goes_on(record: TrainingRecord, baseline: TrainingRecord, at: int) -> Finding | None:
    """Return the finding that training goes on after steps that are all those of the uninterrupted run.

    A program that has forgotten how many steps it has made is not meant: it makes all steps once more.

    :param at: step after which the program continued.
    """
    last = baseline.num_steps
    more = record.num_steps - last
    if not at or more <= 0 or not _knows_its_place(record, baseline, at):
        return None
    alike = len(record.ranks) == len(baseline.ranks) and record.num_replicas == baseline.num_replicas
    pairs = zip(record.ranks, baseline.ranks, strict=False)
    if alike and not all(_same_steps(ours, theirs, at, last) for ours, theirs in pairs):
        return None
    compared = f"steps {at + 1} to {last} have the values and examples of the uninterrupted run"
    return Finding(
        check=RESUME,
        message=f"after the interruption, training does not end after step {last}, but {more} step(s) later",
        cause="resume-lost-state",
        step=last,
        fix=SPECIAL["end-of-training"],
        observed=f"training ends after step {record.num_steps}",
        expected=f"training ends after step {last}",
        evidence=f"compared: {compared}" if alike else "fit continued with the epoch that follows the restored step",
    )


def _knows_its_place(record: TrainingRecord, baseline: TrainingRecord, at: int) -> bool:
    """Return whether the program knew how many steps it had made.

    ``fit`` has continued with the epoch that follows. A loop has made at least one of the steps that were left, and
    not all steps once more, unless its data has gone on after the end.
    """
    begun = baseline.ranks[0].facts.get("epochs")
    own = record.ranks[0].facts.get("epochs")
    if begun and own:
        return {**begun, max(begun) + 1: baseline.num_steps}.get(min(own)) == at
    if record.num_replicas != baseline.num_replicas or len(record.ranks) != len(baseline.ranks):
        return False  # nothing shows that the steps are those of the other run
    last = baseline.num_steps
    if at < last and record.num_steps - last == at:
        known = {name for rank in baseline.ranks for step in rank.steps for name in _contents(step)}
        return any(name not in known for rank in record.ranks for step in rank.steps[last:] for name in _contents(step))
    return at < last


def _same_steps(ours: RankRecord, theirs: RankRecord, at: int, last: int) -> bool:
    kept = [item.index for item in theirs.variables if item.kind is not VariableKind.METRIC]
    pairs = zip(ours.steps[at:last], theirs.steps[at:last], strict=True)
    return all(
        _contents(one) == _contents(other)
        and all(same_parts(one.snapshot.get(index, ()), other.snapshot.get(index, ())) for index in kept)
        for one, other in pairs
    )


def _contents(step: StepRecord) -> Counter[object]:
    return Counter(name for batch in step.batches for name in batch.examples)


def other_draws(record: TrainingRecord, baseline: TrainingRecord, at: int) -> Finding | None:
    """Return the finding that a random operation draws other numbers than in the same step without the interruption.

    :param at: step after which the program continued.
    """
    if record.num_replicas != baseline.num_replicas:
        return None
    for step in range(at, min(record.num_steps, baseline.num_steps)):
        for ours, theirs in zip(record.ranks, baseline.ranks, strict=False):
            known = {(draw.replica, draw.position, draw.op): draw for draw in theirs.steps[step].draws}
            for draw in ours.steps[step].draws:
                other = known.get((draw.replica, draw.position, draw.op))
                alike = other is not None and (draw.size, draw.shape) == (other.size, other.shape)
                if other is not None and alike and draw.digest != other.digest:
                    return _of_draw(draw, ours.rank, step + 1)
    return None


def _of_draw(draw: DrawRecord, rank: int, step: int) -> Finding:
    name = draw.generator or draw.name or draw.op
    return Finding(
        check=RESUME,
        message=f"after the interruption, {name} draws other numbers in step {step} than without it",
        cause="resume-random-wrong",
        step=step,
        replica=draw.replica,
        worker=rank,
        fix=fix_of("resume-random-wrong"),
        evidence=f"compared: what {draw.op} drew on replica {draw.replica} in step {step} without the interruption",
        operations=(draw.position,),
    )


def differences(
    record: TrainingRecord, baseline: TrainingRecord, tolerance: Tolerance, at: int
) -> Iterator[tuple[str, int, float]]:
    """Yield the numbers that differ from the uninterrupted run by more than rounding, each with its step and error.

    :param at: step after which the program continued.
    """
    for ours, theirs in zip(record.ranks, baseline.ranks, strict=True):
        for one, other in zip(ours.steps[at:], theirs.steps[at:], strict=True):
            yield from _of_snapshots(theirs, one.snapshot, other.snapshot, tolerance, other.index)
            yield from _of_scalars(one, other, tolerance)
        yield from _of_snapshots(theirs, ours.final or {}, theirs.final or {}, tolerance, baseline.num_steps)


def _of_snapshots(
    rank: RankRecord, ours: Snapshot, theirs: Snapshot, tolerance: Tolerance, step: int
) -> Iterator[tuple[str, int, float]]:
    for variable in rank.variables:
        left, right = ours.get(variable.index, ()), theirs.get(variable.index, ())
        if variable.kind is VariableKind.METRIC or not (left or right):
            continue
        pairs = list(zip(left, right, strict=False)) if len(left) == len(right) else []
        error = max((difference(a, b).error for a, b in pairs), default=float("inf"))
        if not error <= tolerance.variable(variable.index, step).value:
            yield variable.name, step, error


def _of_scalars(one: StepRecord, other: StepRecord, tolerance: Tolerance) -> Iterator[tuple[str, int, float]]:
    if RUNNING_MEAN in other.values:
        return  # within an epoch, fit shows means over a part of it
    ours: Mapping[str, float | None] = {**one.values, "": one.loss}
    theirs: Mapping[str, float | None] = {**other.values, "": other.loss}
    for name in {**ours, **theirs}:
        left, right = ours.get(name), theirs.get(name)
        if left is None or right is None:
            if left is not right:
                yield name or "the loss", other.index, float("inf")
            continue
        bound = (tolerance.value(name, other.index) if name else tolerance.loss(other.index)).value
        error = difference(np.asarray(left), np.asarray(right)).error
        if not error <= bound:
            yield name or "the loss", other.index, error
