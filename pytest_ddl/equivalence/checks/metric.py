"""METRIC-EQ: metrics, named values, and what fit, evaluate and predict return equal one device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.afterwards import changed_afterwards
from pytest_ddl.equivalence.diagnosis.alike import Wrong, formulas, steps_alike
from pytest_ddl.equivalence.diagnosis.reported import Reported, results, values
from pytest_ddl.equivalence.evidence.arrays import all_finite, difference, magnitude
from pytest_ddl.equivalence.evidence.bounds import Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import Pair, combined, counted_by_replica, jumps, pairs, resummed
from pytest_ddl.equivalence.evidence.observe import shared_steps
from pytest_ddl.equivalence.evidence.one_sided import lone_results, lone_values, lone_variables
from pytest_ddl.equivalence.evidence.results import Returned, returned
from pytest_ddl.equivalence.findings import CheckResult, Finding, Reason, Unjudged
from pytest_ddl.equivalence.outcomes import failed, inconclusive, not_applicable, passed, unmatched
from pytest_ddl.hints import Hint
from pytest_ddl.messages import listed
from pytest_ddl.records import RankRecord, TrainingRecord, VariableKind

CHECK = "METRIC-EQ"
_SHOWN_BY_FIT = (
    "the metric's own state agrees with one device: fit shows, until the epoch ends, what the replicas' metrics show "
    "one by one"
)

_IN_WORDS = {
    1: "it is {number} x the value of one device, as if means of the {number} replicas were added up",
    -1: "it is 1/{number} of the value of one device: a mean of parts, or the part of one replica",
    0: "",
}
"""Evidence by the power of N that divides the value by that of one device; 0 if none does."""
_BY_HAND = {1: "parts-of-a-value", -1: "shares-of-a-value", 0: "value-of-all-examples"}
"""Fix for a value that a program computes itself, by the same power."""


@dataclass
class _Seen:
    """Values that were compared, values that could not be, and findings."""

    compared: int = 0
    skipped: list[Unjudged] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    """Values that only one side recorded."""
    findings: list[Finding] = field(default_factory=list)
    taken_over: tuple[int, ...] = ()
    """Steps after which one device took over the weights of the strategy."""

    def is_wrong(self, value: Reported) -> bool:
        """Judge a value. Skip it if no bound can decide."""
        judged = value.judged(self.taken_over)
        if isinstance(judged, Reason):
            where = f"step {self.taken_over[0]} or before" if judged is Reason.KEPT else ""
            self.skipped.append(Unjudged(value.name, judged, where))
            return False
        self.compared += 1
        return judged is Decision.BEYOND


def check_metric(comparison: Comparison) -> CheckResult:
    """Compare metric state, named values and results of calls as long as the weights agree, and the run lasts."""
    reference, distributed = comparison.records
    if reference.errors:
        return not_applicable(CHECK, "the run failed, see RUN")
    if not (reference.ranks and distributed.ranks):
        return inconclusive(CHECK, "no rank left a record")
    steps = comparison.steps
    diverged = comparison.differences().step
    if diverged == 0:
        return not_applicable(CHECK, "the weights differ before the first step")
    sound = steps if diverged is None else diverged - 1
    seen = _Seen(taken_over=reference.taken_over)
    if not distributed.errors:  # a run that failed may have made fewer metrics
        seen.findings = unmatched(CHECK, reference, distributed, (VariableKind.METRIC,), "metric-wrong")
    _results(comparison, sound, seen)
    _state(comparison, sound, seen)
    _values(comparison, sound, seen)
    skipped = f"; not compared: {', '.join(map(str, dict.fromkeys(seen.skipped)))}" if seen.skipped else ""
    if seen.findings:
        # Report the earliest place of each name first. A wrong history is more useful than its single steps.
        return failed(CHECK, sorted(seen.findings, key=lambda finding: finding.step or 0))
    if distributed.errors:
        return _before_its_end(seen, skipped)
    seen.alone += lone_results(reference, distributed, sound) + lone_values(reference, distributed, sound)
    if seen.alone:
        reason = f"recorded on one side only: {listed(seen.alone)}; record them in every run"
        return inconclusive(CHECK, reason, in_program=True)
    unread = lone_variables(reference, distributed, (VariableKind.METRIC,))
    if unread is not None:
        return inconclusive(CHECK, unread)
    afterwards = changed_afterwards(CHECK, comparison, (VariableKind.METRIC,)) if steps and diverged is None else None
    if afterwards is not None:
        return afterwards
    if not seen.compared and diverged is None and steps == 0:
        return inconclusive(CHECK, f"no steps or results that can be compared were recorded{skipped}")
    if seen.compared:
        result = passed(CHECK, f"{seen.compared} values" + (f", up to step {sound}" if sound < steps else "") + skipped)
    elif diverged is not None:
        why = f"the weights differ from step {diverged} on, and so do the values computed with them"
        result = not_applicable(CHECK, why)
    else:
        why = f"no metric, named value or result was recorded on both sides{skipped}"
        result = not_applicable(CHECK, why, Hint.METRICS())
    later = _later(reference, distributed, sound)
    return replace(result, unjudged=tuple(dict.fromkeys([*seen.skipped, *later])))


def _before_its_end(seen: _Seen, skipped: str) -> CheckResult:
    """Judge a run that failed, by what both sides recorded before."""
    if not seen.compared and not seen.skipped:
        return not_applicable(CHECK, "the run failed, see RUN")
    result = passed(CHECK, f"{seen.compared} values before the run failed{skipped}")
    return replace(result, unjudged=tuple(dict.fromkeys(seen.skipped)))


def _later(reference: TrainingRecord, distributed: TrainingRecord, sound: int) -> list[Unjudged]:
    """Return the results and named values that both sides computed after the weights began to differ."""
    ours, theirs = returned(reference.ranks[0]), returned(distributed.ranks[0])
    names = [one.name for key, one in theirs.items() if key in ours and one.kind != "fit" and one.step > sound]
    for step in range(sound + 1, shared_steps(reference, distributed) + 1):
        mine, others = (record.ranks[0].steps[step - 1].values for record in (reference, distributed))
        # The program itself does not compute the values that fit shows within an epoch.
        names += [name for name in others if name in mine and RUNNING_MEAN not in others]
    where = f"from step {sound + 1} on"
    return [Unjudged(name, Reason.WEIGHTS_DIFFER, where) for name in dict.fromkeys(names)]


def _results(comparison: Comparison, sound: int, seen: _Seen) -> None:
    distributed = comparison.distributed
    for rank, actual, value in results(comparison):
        if actual.step > sound:
            continue
        rows = value.actual.shape[:1] != value.desired.shape[:1]
        if actual.kind == "fit" and rows:
            if not any(other.resumed for other in distributed.ranks):
                lengths = f"{len(value.desired)} entries on one device, {len(value.actual)} under the strategy"
                seen.alone.append(f"{actual.name} ({lengths})")
            continue  # the run was interrupted: each attempt has a history of its own
        if actual.kind == "predict" and rows and value.actual.ndim == value.desired.ndim:
            seen.findings.append(_missing_rows(rank, actual, len(value.desired)))
            continue
        if not seen.is_wrong(value):
            continue
        loss = actual.name.split("/")[-1] == "loss"
        cause = "reported-loss-wrong" if loss and actual.kind == "fit" else "metric-wrong"
        evidence = _order_of_rows(value) if actual.kind == "predict" else None
        message = f"{actual.name} returned after step {actual.step} is not that of one device"
        seen.findings.append(_finding(value, rank, distributed.num_replicas, message, cause, evidence))


def _missing_rows(rank: RankRecord, actual: Returned, right: int) -> Finding:
    left = len(actual.value)
    cause = "examples-dropped" if left < right else "examples-duplicated"
    return Finding(
        CHECK,
        f"{actual.name} has {left} rows, and {right} on one device",
        cause=cause,
        step=actual.step,
        variable=actual.name,
        worker=rank.rank,
        observed=str(left),
        expected=str(right),
    )


def _order_of_rows(value: Reported) -> str | None:
    """Return evidence if the rows are those of one device in another order, else ``None``."""
    actual, desired = value.actual, value.desired
    if actual.shape != desired.shape or actual.ndim == 0:
        return None
    left, right = (rows.reshape(len(rows), -1) for rows in (actual, desired))
    error = difference(*(rows[np.lexsort(rows.T[::-1])] for rows in (left, right))).error
    return "the rows are those of one device in another order" if error <= value.bound.value else None


def _state(comparison: Comparison, sound: int, seen: _Seen) -> None:
    """Compare the variables of metrics, read by their declared aggregation."""
    reference, distributed = comparison.records
    wrong = {step: found for step in range(sound + 1) if (found := _wrong_state(comparison, step, seen))}
    if not wrong:
        return
    step, first = next(iter(wrong.items()))
    pair, value = first[0][0], first[0][1].value
    when = f"after step {step}" if step else "before the first step"
    message = f"the metric state {pair.theirs.name} differs from one device {when}"
    evidence = resummed(reference, distributed, pair, step, value.bound.value)
    finding = _finding(value, distributed.ranks[0], distributed.num_replicas, message, evidence=evidence)
    others = tuple(other.theirs.name for other, _one in first[1:])
    later = {at: [one for _pair, one in found] for at, found in wrong.items() if at > step}
    alike = tuple(steps_alike(later, [one for _pair, one in first]))
    seen.findings.append(replace(finding, variable=pair.theirs.name, others=others, also_in=alike))


def _wrong_state(comparison: Comparison, step: int, seen: _Seen) -> list[tuple[Pair, Wrong]]:
    """Return the variables of metrics that are wrong after a step."""
    reference, distributed = comparison.records
    wrong = []
    alike = counted_by_replica(comparison, step) if step else ()
    for pair in pairs(reference, distributed):
        if not step and (pair.ours.since or pair.theirs.since):
            continue
        if pair.ours.index in alike:
            seen.compared += 1
            continue
        desired = reference.value(pair.ours.index, step)
        actual = combined(distributed, pair.theirs, step)
        if desired is None or actual is None:
            continue
        bound = comparison.tolerance.variable(pair.ours.index, step)
        if bound.measured and bound.value > bound.effect and not np.any(desired):
            continue
        again = comparison.tolerance.again
        repeated = again.value(pair.ours.index, step) if again is not None and again.num_steps >= step else None
        if jumps(comparison.tolerance, pair.ours.index, step, difference(actual, desired).error):
            seen.skipped.append(Unjudged(pair.ours.name, Reason.JUMPS))
            continue
        value = Reported(pair.ours.name, step, actual, desired, bound, repeated)
        if seen.is_wrong(value):
            wrong.append((pair, Wrong(value, formulas(reference, distributed, pair, value))))
    return wrong


def _values(comparison: Comparison, sound: int, seen: _Seen) -> None:
    """Compare named values, and report the first wrong step of each on the first rank that shows it."""
    wrong: dict[str, list[tuple[RankRecord, Wrong]]] = {}
    for step in range(1, sound + 1):
        for rank, value in values(comparison, step):
            if seen.is_wrong(value):
                wrong.setdefault(value.name, []).append((rank, Wrong(value)))
    for name, found in wrong.items():
        rank, first = found[0]
        value = first.value
        what = f"the {name} that fit shows" if value.by_fit else name
        finding = _finding(
            value,
            rank,
            comparison.distributed.num_replicas,
            f"{what} in step {value.step} is not that of one device",
            "staleness-exceeded" if "stale" in name.lower() else "metric-wrong",
        )
        if not value.kept:
            finding = replace(finding, evidence=_SHOWN_BY_FIT, approximation=True)
        later: dict[int, list[Wrong]] = {}
        for _rank, one in found:
            later.setdefault(one.value.step, []).append(one)
        later.pop(value.step)
        seen.findings.append(replace(finding, also_in=tuple(steps_alike(later, [first]))))


def _finding(
    value: Reported,
    rank: RankRecord,
    replicas: int,
    message: str,
    cause: str = "metric-wrong",
    evidence: str | None = None,
) -> Finding:
    apart = difference(value.actual, value.desired)
    by_hand = cause == "metric-wrong" and _is_by_hand(value, rank)
    ratio = _ratio(value, replicas)
    return Finding(
        check=CHECK,
        message=message,
        cause=cause,
        step=value.step,
        variable=value.name,
        worker=rank.rank,
        error=apart.error,
        tolerance=value.bound.value,
        scale=magnitude(value.desired),
        fix=SPECIAL[_BY_HAND[ratio]] if by_hand else None,
        observed=apart.actual,
        expected=apart.desired,
        origin=value.bound.origin,
        a_priori=value.bound.a_priori,
        evidence=evidence or (_IN_WORDS[ratio].format(number=replicas) or None),
    )


def _is_by_hand(value: Reported, rank: RankRecord) -> bool:
    """Return whether a program computed a value itself: it keeps no metric, and no loop of Keras returned it."""
    if any(variable.kind is VariableKind.METRIC for variable in rank.variables):
        return False
    of_keras = value.name.split("/")[0].split("[")[0].split("#")[0] in ("fit", "evaluate", "predict")
    return not of_keras and not any(RUNNING_MEAN in step.values for step in rank.steps)


def _ratio(value: Reported, replicas: int) -> int:
    """Return 1 if the value is N times that of one device, -1 for 1/N, and 0 if it is neither."""
    actual, desired, bound = value.actual, value.desired, value.bound.value
    if actual.shape != desired.shape or not all_finite(actual) or replicas == 1:
        return 0
    if difference(actual, desired * replicas).error <= bound * replicas:
        return 1
    return -1 if difference(actual, desired / replicas).error <= bound else 0
