"""COLL-VALUE: the result of a program's reduction is the reduction of the inputs of all replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import has_lost_details, replicas_of, shared_steps
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive, not_applicable, not_observed, passed
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array, ReductionRecord, TrainingRecord

CHECK = "COLL-VALUE"
OVERFLOW = "reduction-overflow"


@dataclass(frozen=True)
class _Reduction:
    """One reduction with the inputs and results of all replicas."""

    step: int
    position: int
    parts: tuple[ReductionRecord, ...]


def check_collective_value(comparison: Comparison) -> CheckResult:
    """Reduce the recorded inputs again, in a type wide enough to lose nothing, and compare the results."""
    reference, distributed = comparison.records
    requested = [place for step in range(1, distributed.num_steps + 1) for place in _requested(distributed, step)]
    paired = [place for place in requested if _is_whole(distributed, place)]
    if not requested:
        if distributed.num_replicas < 2:
            return not_applicable(CHECK, "there is one replica")
        observed = any(rank.steps for rank in distributed.ranks)
        reason = not_observed(distributed, "reductions were", NoteKind.REDUCTIONS)
        return not_applicable(CHECK, "the program reduces nothing by itself" if observed else reason)
    if not paired:
        return not_applicable(CHECK, "the replicas requested different reductions, so they cannot be paired")
    findings = [finding for item in paired for finding in [_judge(reference, item)] if finding is not None]
    if findings:
        return failed(CHECK, findings[:1])
    if len(paired) < len(requested):
        alone = next(place for place in requested if place not in paired)
        who = ", ".join(str(part.replica) for part in alone.parts)
        reason = f"reduction {alone.position + 1} of step {alone.step} was recorded only on replica {who}"
        return inconclusive(CHECK, reason)
    missing = _missing(reference, distributed)
    if missing is not None:
        reason = f"the reductions of step {missing} were not recorded under the strategy, those of other steps were"
        return inconclusive(CHECK, reason)
    replicas = f"{distributed.num_replicas} replica{'s' if distributed.num_replicas > 1 else ''}"
    return passed(CHECK, f"{len(paired)} reductions give the sum or mean of the inputs of {replicas}")


def _requested(record: TrainingRecord, step: int) -> Iterator[_Reduction]:
    """Yield the reductions of a step, each with all replicas that requested it."""
    reductions = [item for rank in record.ranks for item in rank.steps[step - 1].reductions]
    for position in sorted({item.position for item in reductions}):
        parts = sorted((item for item in reductions if item.position == position), key=lambda item: item.replica)
        yield _Reduction(step, position, tuple(parts))


def _is_whole(record: TrainingRecord, reduction: _Reduction) -> bool:
    """Return whether a reduction was recorded on every replica, with inputs that can be added up."""
    alike = len({(item.op, item.dtype, item.given.shape) for item in reduction.parts}) == 1
    return alike and [item.replica for item in reduction.parts] == replicas_of(record, reduction.step)


def _missing(reference: TrainingRecord, distributed: TrainingRecord) -> int | None:
    """Return the first step that has fewer reductions than on one device, if any other step has as many."""
    every = range(1, shared_steps(reference, distributed) + 1)
    steps = [step for step in every if not has_lost_details(distributed, step)]
    pairs = [tuple(len(list(_requested(record, step))) for record in (reference, distributed)) for step in steps]
    if not any(ours and ours == theirs for ours, theirs in pairs):
        return None
    return next((step for step, (ours, theirs) in zip(steps, pairs, strict=True) if theirs < ours), None)


def _judge(reference: TrainingRecord, item: _Reduction) -> Finding | None:
    first = item.parts[0]
    if first.op not in ("SUM", "MEAN") or first.given.dtype.kind not in "iuf":
        return None
    exact = first.given.dtype.kind in "iu"
    wide = [part.given.astype(object if exact else np.longdouble) for part in item.parts]
    if not exact and not all(np.isfinite(part).all() for part in wide):
        return None  # check NONFINITE judges inputs that are not finite
    total = sum(wide[1:], start=wide[0])
    for part in item.parts:
        wanted = total if first.op == "SUM" else total / len(wide)
        if part.received.shape != first.given.shape:
            return None
        finding = (_integers if exact else _floats)(item, part, wide, wanted)
        if finding is not None:
            return None if _reference_overflows(reference, item) else finding
    return None


def _integers(item: _Reduction, part: ReductionRecord, wide: list[Array], wanted: Array) -> Finding | None:
    if item.parts[0].op == "MEAN":
        return None  # TensorFlow may round or truncate here
    received = part.received.astype(object)
    wrong = np.not_equal(received, wanted)
    if not np.any(wrong):
        return None
    limits = np.iinfo(part.given.dtype)
    beyond = np.asarray(np.less(wanted, limits.min) | np.greater(wanted, limits.max))
    place = _first(np.asarray(wrong))
    return _finding(item, part, wanted, place, OVERFLOW if beyond[place] else None, 0.0)


def _floats(item: _Reduction, part: ReductionRecord, wide: list[Array], wanted: Array) -> Finding | None:
    kind = part.given.dtype
    limits = np.finfo(kind) if kind.kind == "f" else None
    assert limits is not None
    received = part.received.astype(np.longdouble)
    lost = ~np.isfinite(received)
    if np.any(lost):
        return _finding(item, part, wanted, _first(lost), OVERFLOW, 0.0)
    # Each addition and the division round once. A value that is too small for the dtype may be lost.
    magnitude = sum((np.abs(part) for part in wide[1:]), start=np.abs(wide[0]))
    bound = len(wide) * np.longdouble(limits.eps) * magnitude + len(wide) * np.longdouble(limits.tiny)
    wrong = np.abs(received - wanted) > bound
    if not np.any(wrong):
        return None
    place = _first(wrong)
    return _finding(item, part, wanted, place, None, float(bound[place]))


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(index) for index in np.unravel_index(int(np.argmax(wrong)), wrong.shape))


def _finding(
    item: _Reduction, part: ReductionRecord, wanted: Array, place: tuple[int, ...], cause: str | None, bound: float
) -> Finding:
    given = [str(np.asarray(other.given)[place]) for other in item.parts]
    received, exact = np.asarray(part.received)[place], np.asarray(wanted)[place]
    where = f" at {list(place)}" if place else ""
    message = (
        f"reduction {item.position + 1} of step {item.step} ({part.op} of {part.dtype}): the replicas gave "
        f"{', '.join(given[:8])}{where} and got {received}, not {exact}"
    )
    return Finding(
        check=CHECK,
        message=message,
        cause=cause,
        step=item.step,
        replica=part.replica,
        error=abs(float(received) - float(exact)),
        tolerance=bound,
        observed=str(received),
        expected=str(exact),
        origin="exact for integers; otherwise one rounding for each addition",
        evidence=f"the {part.op.lower()} of the inputs of the replicas, computed without overflow, is {exact}",
    )


def _reference_overflows(reference: TrainingRecord, item: _Reduction) -> bool:
    """Return whether one device has a non-finite input there too. Then the strategy is not the reason."""
    if item.step > reference.num_steps:
        return False
    same = [
        other
        for rank in reference.ranks
        for other in rank.steps[item.step - 1].reductions
        if other.position == item.position
    ]
    return any(other.given.dtype.kind == "f" and not np.isfinite(other.given).all() for other in same)
