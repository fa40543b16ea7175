"""Find out whether what a replica computes depends on random numbers of more than one replica.

Numbers that belong to no example are equal on all replicas in the runs without randomness: a share of a mixture, a mask
over features. A mistake that vanishes with equal numbers does not show there, for example a mean of all replicas'
numbers in place of the replica's own. So the program runs three times more under the strategy, with learning rate 0:
twice with equal numbers, and once with the numbers of the first run on the first replica, and those of the second run
on the others. If each replica then computes the gradients of one of the first two runs, it depends on the numbers of
one replica: its own, or one that gives its numbers to all. The gradient of the strategy is then a sum of terms that
each depend on one replica's numbers. For equal numbers, that sum was compared with one device. So its expectation is
that of one device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.checks.liveness import CHECK as LIVENESS
from pytest_ddl.equivalence.checks.seed import CHECK as SEED
from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import (
    Float,
    all_finite,
    coefficient,
    difference,
    flat,
    is_numeric,
    magnitude,
    norm,
    same,
)
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import combined
from pytest_ddl.equivalence.evidence.observe import WEIGHTS, is_seed, of_kind
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Doubt
from pytest_ddl.equivalence.probes.placing import places_of
from pytest_ddl.equivalence.probes.repeating import CompareOnce, left_open, timed
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import DrawRecord, GradientRecord, GradientStage, GradientSum, TrainingRecord, VariableKind
from pytest_ddl.training.neutral import ALONE, APART, OTHER, RANDOM, SWAPPED
from pytest_ddl.training.places import Placement, Rows, Spans, Unplaced
from pytest_ddl.training.settings import RunSettings

CHECK = SEED


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether a program that passes so far may draw numbers that belong to no example, and differ by replica."""
    distributed = report.distributed
    if not report.passed or distributed.num_replicas < 2:
        return False
    if distributed.capabilities.global_view:
        return False
    return any(_may_differ(draws) for draws in _by_position(distributed))


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run again with equal numbers, twice, and with both kinds of numbers, and compare the replicas' gradients."""
    reference, distributed = report.reference, report.distributed
    places = report.places or places_of(reference, distributed)
    drawn = [d[0] for d in _by_position(distributed) if _may_differ(d) and _is_shared(places.draws, d[0].position)]
    if not drawn:
        return report
    # Statistics of batch normalization depend on the other replicas by intention.
    still = replace(settings, neutralize=(RANDOM, ALONE), places=places, still=True)
    records: list[TrainingRecord] = []
    why: str | None = None
    tolerance: Tolerance | None = None
    changes = ((), (OTHER,), (APART,), (SWAPPED,))
    for position, change in enumerate(changes):
        if change == (SWAPPED,) and tolerance is not None:
            why = _refusal(records) or _dependent(tolerance, *records)
            if why is not None or not depends_on_draws(*records[:2]):
                break
        changed = replace(still, neutralize=(*still.neutralize, *change))
        again = timed(report, compare_once(changed, (LIVENESS,), len(changes) - position))
        left = left_open(report, again)
        if left is not None:
            return left
        records.append(again.distributed)
        tolerance = again.tolerance or Tolerance(again.reference)
    else:
        mixed = None if tolerance is None else mixture(tolerance, records[:2], records[2:])
        why = _refusal(records) or (mixed and f"{mixed} is no sum over the replicas of what each draws")
    names = ", ".join(dict.fromkeys(f"{draw.op} {draw.shape}" for draw in drawn[:3]))
    if why is None:
        text = f"the gradient of each replica depends on the numbers of one replica ({names})"
        return replace(report, notes=(*report.notes, Note(NoteKind.HOW, text)))
    doubt = Doubt(CHECK, f"the numbers of {names} belong to no example, and differ between replicas; {why}")
    return replace(report, doubts=(*report.doubts, doubt))


def _by_position(record: TrainingRecord) -> Iterator[list[DrawRecord]]:
    """Yield the draws of one operation in one step, on all replicas."""
    for step in range(1, record.num_steps + 1):
        found: dict[int, list[DrawRecord]] = {}
        for rank in record.ranks:
            for draw in rank.steps[step - 1].draws:
                found.setdefault(draw.position, []).append(draw)
        yield from found.values()


def _may_differ(draws: list[DrawRecord]) -> bool:
    """Return whether replicas draw different numbers, or would if the run had not set the global seed of TensorFlow."""
    shapes, first = {draw.shape for draw in draws}, draws[0]
    follows_seed = not first.seeded and not first.op.startswith("stateless")
    return len(draws) > 1 and len(shapes) == 1 and (len({draw.digest for draw in draws}) > 1 or follows_seed)


def _is_shared(placements: Mapping[int, Placement], position: int) -> bool:
    return not isinstance(placements.get(position, Unplaced()), Rows | Spans)


def _refusal(records: list[TrainingRecord]) -> str | None:
    for record in records:
        if record.errors:
            error = record.errors[0][1]
            return f"with other numbers, the program raised {error.type} after step {error.step}"
        if any(note.kind is NoteKind.NOT_REPLACED for rank in record.ranks for note in rank.notes):
            return "other numbers could not be put in their place"
    return None


def _dependent(tolerance: Tolerance, equal: TrainingRecord, other: TrainingRecord, mixed: TrainingRecord) -> str | None:
    """Return how a replica depends on the numbers of several replicas; ``None`` if none does."""
    compared = 0
    for step in range(1, min(record.num_steps for record in (equal, other, mixed)) + 1):
        if not (_begin_alike(equal, mixed, step) and _begin_alike(other, mixed, step)):
            break
        for stage in GradientStage:
            ours, theirs, found = (
                {(item.replica, item.call): item for item in gradients.calls(record, step, stage)}
                for record in (equal, other, mixed)
            )
            for key in sorted(ours.keys() & theirs.keys() & found.keys()):
                item = found[key]
                compared += 1
                if stage is GradientStage.COMPUTED or item.summed is not GradientSum.TAKEN:
                    if not any(_agree(tolerance, step, item, either[key]) for either in (ours, theirs)):
                        replica = f"replica {item.replica}"
                        return f"in step {step}, the gradient of {replica} depends on the numbers of several replicas"
                elif not _follows(tolerance, step, (equal, mixed), (ours[key], item)):
                    return f"in step {step}, the update is no sum of the gradients that the replicas computed"
    return None if compared else "no gradient of a replica was recorded, so their effect could not be compared"


def _begin_alike(equal: TrainingRecord, apart: TrainingRecord, step: int) -> bool:
    """Return whether a step began with the same weights and state in both runs."""
    watched = [v for v in of_kind(equal, *WEIGHTS, VariableKind.STATE) if not is_seed(v)]
    for variable in watched:
        ours, theirs = (record.components(variable.index, step - 1) for record in (equal, apart))
        for (_rank, _replica, value), (_other, _same, another) in zip(ours, theirs, strict=False):
            if not same(value, another):
                return False
    return True


def _agree(tolerance: Tolerance, step: int, item: GradientRecord, other: GradientRecord) -> bool:
    for index, value in item.values.items():
        another = other.values.get(index)
        if value is None or another is None:
            if value is not another:
                return False
        elif all_finite(value) or all_finite(another):
            scale = max(float(abs(part).max(initial=0.0)) for part in (value, another))
            if difference(value, another).error > 2 * gradients.slack(tolerance, index, step, scale):
                return False
    return True


def _follows(
    tolerance: Tolerance,
    step: int,
    records: tuple[TrainingRecord, TrainingRecord],
    taken: tuple[GradientRecord, GradientRecord],
) -> bool:
    """Return whether gradients that the program reduced itself are one multiple of the sum of those of the replicas.

    The multiple may differ only as a limit of the norm makes it differ: a larger multiple gives no larger gradient.
    """
    found: list[tuple[float, float]] = []
    room = 0.0
    for record, item in zip(records, taken, strict=True):
        sums = gradients.total(gradients.by_replica(record, step, GradientStage.COMPUTED))
        given = {index: value for index, value in item.values.items() if value is not None and index in sums}
        if not given:
            return False
        actual: Float = flat([given[index].astype(float) for index in sorted(given)])
        total = flat([sums[index] for index in sorted(given)])
        factor = coefficient(actual, total)
        if factor is None:
            return norm(actual) == 0.0
        scale = max(float(abs(actual).max(initial=0.0)), abs(factor) * float(abs(total).max(initial=0.0)))
        slack = len(record.ranks) * max(gradients.slack(tolerance, index, step, scale) for index in given)
        if difference(actual, factor * total).error > 2 * slack:
            return False
        found.append((factor, norm(actual)))
        room = max(room, slack / (scale or 1.0))
    (first, size), (second, another) = found
    if abs(first - second) <= 4 * room * abs(first):
        return True
    return (first - second) * (size - another) <= 0


def depends_on_draws(equal: TrainingRecord, other: TrainingRecord) -> bool:
    """Return whether two runs with other random numbers, and the same weights, report other numbers."""
    ours, theirs = (dict(_reported(record)) for record in (equal, other))
    return any(not same(value, theirs[key]) for key, value in ours.items() if key in theirs)


def mixture(tolerance: Tolerance, equal: Sequence[TrainingRecord], mixed: Sequence[TrainingRecord]) -> str | None:
    """Name a reported number that is no sum of terms of single replicas; ``None`` if there is none.

    If f is such a sum, f(a, a) + f(b, b) = f(a, b) + f(b, a). The first replica draws the first argument, and all
    others the second. Then the expectation of f for independent numbers is that for equal ones, which one device can
    show.

    :param equal: the runs in which all replicas draw the same numbers, the first ones or the other ones.
    :param mixed: the run in which only the first replica draws the first numbers, and the run with the reverse.
    """
    found = [dict(_reported(record)) for record in (*equal, *mixed)]
    relative = 8 * tolerance.relative(tolerance.compute_roundoff)
    for key in found[0]:
        values = [np.asarray(of[key], np.float64) for of in found if key in of]
        if len(values) < len(found) or len({value.shape for value in values}) > 1 or not all(map(all_finite, values)):
            return key
        first, second, third, fourth = values
        if difference(first + second, third + fourth).error > relative * max(map(magnitude, values)):
            return key
    return None


def _reported(record: TrainingRecord) -> Iterator[tuple[str, Float]]:
    """Yield the losses, the named values and the state of metrics of all steps, each with a name for the reader."""
    for rank in record.ranks:
        for step in rank.steps:
            where = f"of step {step.index} on rank {rank.rank}"
            if step.loss is not None:
                yield f"the loss {where}", np.asarray(step.loss)
            for name, value in step.values.items():
                if name != RUNNING_MEAN:
                    yield f"{name} {where}", np.asarray(value)
    for variable in of_kind(record, VariableKind.METRIC):
        for at in range(1, record.num_steps + 1):
            state = combined(record, variable, at)
            if state is not None and is_numeric(state):
                yield f"{variable.name} after step {at}", state
