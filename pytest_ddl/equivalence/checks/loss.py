"""LOSS-EQ: the loss that the program reports for a step equals that of one device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from pytest_ddl.equivalence.evidence.bounds import Bound, Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.fit_loss import is_running_mean, shown_by_fit
from pytest_ddl.equivalence.evidence.one_sided import lone_losses
from pytest_ddl.equivalence.findings import CheckResult, Finding, Grounds
from pytest_ddl.equivalence.outcomes import failed, inconclusive, no_steps, not_applicable, passed
from pytest_ddl.records import BatchRecord, RankRecord, TrainingRecord

CHECK = "LOSS-EQ"


class _Way(Enum):
    """Formula that gives a reported loss from the losses of the replicas, or from the loss of one device."""

    FACTOR = auto()
    MEAN_OF_MEANS = auto()
    MEAN = auto()
    OWN = auto()
    SUM = auto()
    PER_EXAMPLE = auto()
    SHOWN_BY_FIT = auto()


class _Kind(Enum):
    """Relation of the replicas' losses to the loss of one device, if they agree."""

    SHARES = auto()
    """Their sum is the loss of one device."""
    MULTIPLIED_SHARES = auto()
    MEANS = auto()
    """Each is the mean over the replica's own examples."""
    DIVIDED_MEANS = auto()
    SUMS = auto()
    """Each is the sum over the replica's own examples."""


_Key = tuple[_Way, int | str, _Kind | None]
"""Formula without the numbers of a step, so that the loss of another step can be explained by the same one."""


@dataclass(frozen=True)
class _Formula:
    """Formula that may give the reported loss."""

    way: _Way
    place: int
    text: str
    value: float
    also: tuple[str, ...] = ()
    is_right: bool = False
    """True if a right program may reduce the losses of its replicas like this: the losses themselves differ then."""


def check_loss(comparison: Comparison) -> CheckResult:
    """Compare the losses of the steps that began with equal weights. Later losses add no information.

    One wrong loss is reported, with the later steps whose loss is wrong in the same way.
    """
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    steps = comparison.steps
    if steps == 0:
        return no_steps(CHECK, distributed, reference)
    diverged = comparison.differences().step
    if diverged == 0:
        return inconclusive(CHECK, "the weights differ before the first step", follows=True)
    last = steps if diverged is None else min(steps, diverged)
    compared = 0
    undecided: str | None = None
    wrong: list[_Wrong] = []
    not_finite: int | None = None
    for step, rank, actual, desired in _losses(comparison, last):
        if not math.isfinite(desired) and _alike(actual, desired):
            not_finite = not_finite or step
            continue
        compared += 1
        bound = tolerance.loss(step)
        error = abs(actual - desired) if math.isfinite(actual) and math.isfinite(desired) else math.inf
        decision = bound.judge(error)
        if decision is Decision.BEYOND:
            wrong.append(_wrong(reference, distributed, step, rank, actual, desired, bound))
        if decision is Decision.UNDECIDED and undecided is None:
            undecided = f"the loss of step {step} differs by {error:.3g}, rounding may explain {bound.value:.3g}"
    if wrong:
        # The loss that fit shows may be wrong in each step for a known reason. A later one may have another reason.
        kinds = [[one for one in wrong if one.finding.approximation is tolerated] for tolerated in (False, True)]
        return failed(CHECK, [_first(kind) for kind in kinds if kind])
    if undecided is None and compared == 0 and not_finite is not None:
        undecided = f"the single-device loss is not finite at step {not_finite}"
    if undecided:
        return inconclusive(CHECK, undecided)
    alone = lone_losses(reference, distributed, last)
    if alone:
        return inconclusive(
            CHECK, f"a loss was recorded on one side only ({alone}): return one number from the step in both runs"
        )
    if compared == 0:
        return not_applicable(CHECK, "no loss was recorded on both sides", "a loss of each step")
    counted = f"{compared} losses" + (f", up to step {last}" if last < steps else "")
    return passed(CHECK, counted + (f"; not finite in both runs at step {not_finite}" if not_finite else ""))


def _losses(comparison: Comparison, last: int) -> Iterator[tuple[int, RankRecord, float, float]]:
    """Yield ``(step, rank, actual, desired)`` for each loss that was reported on both sides up to a step."""
    reference, distributed = comparison.records
    for step in range(1, last + 1):
        desired = reference.ranks[0].steps[step - 1].loss
        for rank in distributed.ranks:
            actual = rank.steps[step - 1].loss
            if desired is not None and actual is not None:
                yield step, rank, actual, desired


def _alike(actual: float, desired: float) -> bool:
    return actual == desired or (math.isnan(actual) and math.isnan(desired))


@dataclass(frozen=True)
class _Wrong:
    """Wrong loss of one step on one rank, and the formulas that give it."""

    finding: Finding
    keys: frozenset[_Key]
    actual: float
    desired: float
    slack: float

    def is_like(self, first: _Wrong) -> bool:
        """Return whether the loss is wrong in the way of an earlier one: by the same formula, or else by its factor."""
        if self.keys or first.keys:
            return bool(self.keys & first.keys)
        ratio = first.finding.ratio
        return ratio is not None and abs(self.actual - ratio * self.desired) <= self.slack * max(1.0, abs(ratio))


def _first(wrong: Sequence[_Wrong]) -> Finding:
    """Return the finding of the first wrong loss, with the steps in which every wrong loss is like it."""
    first = wrong[0]
    kept, steps = first, dict.fromkeys(one.finding.step or 0 for one in wrong)
    for one in wrong:
        if not one.is_like(kept):
            steps.pop(one.finding.step or 0, None)
        elif one.keys:  # a formula that fits by chance does not fit again
            kept = replace(kept, keys=kept.keys & one.keys)
    return replace(first.finding, also_in=tuple(step for step in steps if step != first.finding.step))


def _wrong(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    step: int,
    rank: RankRecord,
    actual: float,
    desired: float,
    bound: Bound,
) -> _Wrong:
    slack = bound.value * max(1, distributed.num_replicas)
    by_fit = is_running_mean(distributed, step)
    shown = shown_by_fit(reference, distributed, step, actual, slack) if by_fit else None
    formulas = [f for f in _formulas(distributed, step, rank, desired, slack) if abs(actual - f.value) <= slack]
    formula = formulas[0] if formulas else None
    evidence = "; ".join(f.text for f in formulas) or "no formula tried (sums, means, single replicas) fits"
    cause = shown.cause if shown else "reported-loss-wrong"
    also = shown.also if shown else formula.also if formula else ()
    recomputed = not shown.of_other_losses if shown else formula is not None and not formula.is_right
    what = f"the loss that fit shows in step {step}" if by_fit else f"the loss reported for step {step}"
    finding = Finding(
        check=CHECK,
        message=f"{what} is not that of one device",
        cause=cause,
        step=step,
        variable="loss",
        worker=rank.rank,
        error=abs(actual - desired) if math.isfinite(actual) else math.inf,
        tolerance=bound.value,
        observed=f"{actual:.9g}",
        expected=f"{desired:.9g}",
        origin=bound.origin,
        a_priori=bound.a_priori,
        evidence=shown.text if shown else evidence,
        also=also,
        approximation=shown.approximation if shown else False,
        ratio=actual / desired if desired and math.isfinite(actual) else None,
        grounds=Grounds.RECOMPUTED if recomputed else Grounds.PATTERN,
    )
    keys: list[_Key] = [(_Way.SHOWN_BY_FIT, cause, None)] if shown else []
    for one in [] if shown else formulas:
        # A formula of the replicas' losses explains a wrong loss only if these losses are right: a loop reduces any
        # number of its replicas in the same way.
        kinds = [None] if one.way is _Way.FACTOR else _kinds(distributed, step, desired, slack)
        keys.extend((one.way, one.place, kind) for kind in kinds)
    return _Wrong(finding, frozenset(keys), actual, desired, slack)


def _with_loss(distributed: TrainingRecord, step: int) -> list[tuple[BatchRecord, float]]:
    return [(batch, batch.loss) for batch in distributed.batches(step) if batch.loss is not None]


def _kinds(distributed: TrainingRecord, step: int, desired: float, slack: float) -> list[_Kind]:
    """Return what the losses of the replicas may be, by the loss of one device; nothing if they do not give it."""
    number, parts = distributed.num_replicas, _with_loss(distributed, step)
    total, added = sum(batch.size for batch, _loss in parts), sum(loss for _batch, loss in parts)
    given = {_Kind.SHARES: added, _Kind.MULTIPLIED_SHARES: added / number}
    if total:
        mean = sum(batch.size * loss for batch, loss in parts) / total
        given |= {_Kind.MEANS: mean, _Kind.DIVIDED_MEANS: number * mean, _Kind.SUMS: added / total}
    return [kind for kind, value in given.items() if abs(value - desired) <= slack]


def _formulas(distributed: TrainingRecord, step: int, rank: RankRecord, desired: float, slack: float) -> list[_Formula]:
    """Return formulas that a loop might report instead of the mean over the global batch, the likeliest first."""
    number = distributed.num_replicas
    formulas = []
    if number > 1:
        text = f"{number} x the single-device loss (summed means)"
        formulas.append(_Formula(_Way.FACTOR, number, text, desired * number, _SCALE_UP))
        text = f"1/{number} of the single-device loss"
        formulas.append(_Formula(_Way.FACTOR, -number, text, desired / number, _SCALE_DOWN))
    parts = _with_loss(distributed, step)
    if len(parts) < 2:
        return formulas
    losses = [loss for _batch, loss in parts]
    total = sum(batch.size for batch, _loss in parts)
    mean = sum(losses) / len(losses)
    # A replica's loss is the mean over its own examples, or that mean already divided by the number of replicas.
    kinds = _kinds(distributed, step, desired, slack)
    for kind, scale in ((_Kind.MEANS, 1), (_Kind.DIVIDED_MEANS, number)):
        if kind in kinds:
            text = "the mean of the replicas' means, whatever their sizes"
            formulas.append(_Formula(_Way.MEAN_OF_MEANS, scale, text, scale * mean, _MEANS))
    formulas.append(_Formula(_Way.MEAN, 0, "the mean of the replicas' losses", mean, is_right=True))
    for batch, loss in parts:
        # Each rank may report the loss of a replica of its own.
        place = rank.replicas.index(batch.replica) if batch.replica in rank.replicas else -1 - batch.replica
        formulas.append(_Formula(_Way.OWN, place, f"replica {batch.replica}'s own loss", loss))
    formulas.append(_Formula(_Way.SUM, 0, "the sum of the replicas' losses", sum(losses), is_right=True))
    if total:
        formulas.append(_Formula(_Way.PER_EXAMPLE, 0, "the sum of losses per example", sum(losses) / total))
    return formulas


_SCALE_UP = ("gradient-scaled-by-replica-count",)
_SCALE_DOWN = ("gradient-scaled-by-inverse-replica-count",)
_MEANS = ("mean-of-replica-means",)
