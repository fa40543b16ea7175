"""METRIC-EQ: metrics, named values, and what fit, evaluate and predict return equal one device."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.afterwards import changed_afterwards
from pytest_ddl.equivalence.evidence.arrays import all_finite, difference, magnitude
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import combined, counted_by_replica, pairs, resummed, state_agrees
from pytest_ddl.equivalence.evidence.observe import shared_steps
from pytest_ddl.equivalence.evidence.one_sided import listed, lone_results, lone_values, lone_variables
from pytest_ddl.equivalence.evidence.results import Returned, returned
from pytest_ddl.equivalence.evidence.tolerance import GROSS, Bound, Decision
from pytest_ddl.equivalence.findings import CheckResult, Finding, Reason, Unjudged
from pytest_ddl.equivalence.outcomes import failed, inconclusive, not_applicable, passed, unmatched
from pytest_ddl.records import Array, RankRecord, TrainingRecord, VariableKind

CHECK = "METRIC-EQ"
_TOPOLOGY = re.compile(r"(?<![a-z])(?:rank|replica|worker|task|device|process(?:es)?)(?:id|s)?(?![a-z])", re.IGNORECASE)
"""Names of values that may depend on the rank or replica instead of the training."""
_SHOWN_BY_FIT = (
    "the metric's own state agrees with one device: fit shows, until the epoch ends, what the replicas' metrics show "
    "one by one"
)


@dataclass(frozen=True)
class _Value:
    """Value that both runs have after a step, and its bound."""

    name: str
    step: int
    actual: Array
    desired: Array
    bound: Bound
    again: Array | None = None
    """Value in a second run of the unchanged reference; ``None`` without such a run."""


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

    def is_wrong(self, value: _Value, *, kept: bool = True) -> bool:
        """Judge a value. Skip it if no bound can decide.

        :param kept: True if the value may hold something that the program kept from earlier steps.
        """
        error, bound = difference(value.actual, value.desired).error, value.bound
        if error == 0.0 and not np.any(np.isfinite(value.desired)):
            self.skipped.append(Unjudged(value.name, Reason.NOT_FINITE))
            return False
        decision = bound.judge(error)
        if bound.measured and bound.value > bound.effect and not math.isinf(error):
            # A time, an unseeded random number, or the result of training that amplifies rounding. Only the first two
            # differ in a second run of the same program.
            if value.again is None:
                self.skipped.append(Unjudged(value.name, Reason.NOT_REPEATED))
                return False
            if difference(value.again, value.desired).error > bound.unamplified:
                self.skipped.append(Unjudged(value.name, Reason.NOT_REPRODUCIBLE))
                return False
        if decision is Decision.UNDECIDED:
            self.skipped.append(Unjudged(value.name, Reason.TOO_WIDE))
            return False
        if decision is Decision.BEYOND and kept and not self._is_gross(error, value.desired, value.step):
            self.skipped.append(Unjudged(value.name, Reason.KEPT, f"step {self.taken_over[0]} or before"))
            return False
        self.compared += 1
        return decision is Decision.BEYOND

    def _is_gross(self, error: float, desired: Array, step: int) -> bool:
        """Say whether an error cannot come from weights that the program saw before one device took over others.

        Sums and averages that the program keeps by itself are not taken over. They differ by what is tolerated.
        """
        earlier = any(taken <= step for taken in self.taken_over)
        return not earlier or not error <= GROSS * magnitude(desired)


def check_metric(comparison: Comparison) -> CheckResult:
    """Compare metric state, named values and results of calls as long as the weights agree."""
    reference, distributed = comparison.records
    if distributed.errors or reference.errors:
        return not_applicable(CHECK, "the run failed, see RUN")
    if not (reference.ranks and distributed.ranks):
        return inconclusive(CHECK, "no rank left a record")
    steps = comparison.steps
    diverged = comparison.differences().step
    if diverged == 0:
        return not_applicable(CHECK, "the weights differ before the first step")
    sound = steps if diverged is None else diverged - 1
    unlike = unmatched(CHECK, reference, distributed, (VariableKind.METRIC,), "metric-wrong")
    seen = _Seen(findings=unlike, taken_over=reference.taken_over)
    _results(comparison, sound, seen)
    _state(comparison, sound, seen)
    _values(comparison, sound, seen)
    skipped = f"; not compared: {', '.join(map(str, dict.fromkeys(seen.skipped)))}" if seen.skipped else ""
    if seen.findings:
        # Report the earliest place of each name first. A wrong history is more useful than its single steps.
        return failed(CHECK, sorted(seen.findings, key=lambda finding: finding.step or 0))
    seen.alone += lone_results(reference, distributed, sound) + lone_values(reference, distributed, sound)
    if seen.alone:
        return inconclusive(CHECK, f"recorded on one side only: {listed(seen.alone)}; record them in every run")
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
        result = not_applicable(CHECK, why, "run.watch(metrics=...) or run.value(...)")
    later = _later(reference, distributed, sound)
    return replace(result, unjudged=tuple(dict.fromkeys([*seen.skipped, *later])))


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
    reference, distributed = comparison.records
    ours = returned(reference.ranks[0])
    noisy = [returned(run.ranks[0]) for run in comparison.tolerance.perturbed if run.ranks]
    again = comparison.tolerance.again
    repeated = returned(again.ranks[0]) if again is not None and again.ranks else {}
    for rank in distributed.ranks:
        for key, actual in returned(rank).items():
            desired = ours.get(key)
            if desired is None or actual.step > sound:
                continue
            rows = actual.value.shape[:1] != desired.value.shape[:1]
            if actual.kind == "fit" and rows:
                if not any(other.resumed for other in distributed.ranks):
                    lengths = f"{len(desired.value)} entries on one device, {len(actual.value)} under the strategy"
                    seen.alone.append(f"{actual.name} ({lengths})")
                continue  # the run was interrupted: each attempt has a history of its own
            if actual.kind == "predict" and rows and actual.value.ndim == desired.value.ndim:
                seen.findings.append(_missing_rows(rank, actual, len(desired.value)))
                continue
            bound = comparison.tolerance.result(desired.value, [run[key].value for run in noisy if key in run])
            value = _Value(
                actual.name,
                actual.step,
                actual.value,
                desired.value,
                bound,
                repeated[key].value if key in repeated else None,
            )
            if not seen.is_wrong(value, kept=actual.kind == "fit"):
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
        fix=fix_of(cause),
        observed=str(left),
        expected=str(right),
    )


def _order_of_rows(value: _Value) -> str | None:
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
    watched = pairs(reference, distributed)
    for step in range(sound + 1):
        wrong = []
        alike = counted_by_replica(comparison, step) if step else ()
        for pair in watched:
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
            value = _Value(pair.ours.name, step, actual, desired, bound, repeated)
            if seen.is_wrong(value):
                wrong.append((pair, value))
        if wrong:
            pair, value = wrong[0]
            when = f"after step {step}" if step else "before the first step"
            message = f"the metric state {pair.theirs.name} differs from one device {when}"
            evidence = resummed(reference, distributed, pair, step, value.bound.value)
            found = _finding(value, distributed.ranks[0], distributed.num_replicas, message, evidence=evidence)
            others = tuple(other.theirs.name for other, _value in wrong[1:])
            seen.findings.append(replace(found, variable=pair.theirs.name, others=others))
            return


def _values(comparison: Comparison, sound: int, seen: _Seen) -> None:
    """Compare named values, and report the first wrong step of each on the first rank that shows it."""
    reference, distributed = comparison.records
    done: set[str] = set()
    for step in range(1, sound + 1):
        ours = reference.ranks[0].steps[step - 1].values
        for rank in distributed.ranks:
            theirs = rank.steps[step - 1].values
            by_fit = RUNNING_MEAN in theirs
            for name in theirs:
                if name not in ours or name == RUNNING_MEAN or name in done:
                    continue
                if _tells_topology(name, theirs[name], distributed, rank):
                    seen.skipped.append(Unjudged(name, Reason.OF_A_PLACE))
                    continue
                bound = comparison.tolerance.value(name, step)
                repeated = _recorded(comparison.tolerance.again, name, step)
                value = _Value(name, step, np.asarray(theirs[name]), np.asarray(ours[name]), bound, repeated)
                # Within an epoch, fit shows what the replicas' metrics show, which is no value that the program keeps.
                is_shown = by_fit and state_agrees(comparison, step)
                if not seen.is_wrong(value, kept=not is_shown):
                    continue
                done.add(name)
                what = f"the {name} that fit shows" if by_fit else f"{name}"
                found = _finding(
                    value,
                    rank,
                    distributed.num_replicas,
                    f"{what} in step {step} is not that of one device",
                    "staleness-exceeded" if "stale" in name.lower() else "metric-wrong",
                )
                if is_shown:
                    found = replace(found, evidence=_SHOWN_BY_FIT, approximation=True)
                seen.findings.append(found)


def _recorded(again: TrainingRecord | None, name: str, step: int) -> Array | None:
    value = again.ranks[0].steps[step - 1].values.get(name) if again is not None and again.num_steps >= step else None
    return None if value is None else np.asarray(value)


def _tells_topology(name: str, value: float, record: TrainingRecord, rank: RankRecord) -> bool:
    """Return whether a value is an index or a number of replicas, which must differ from one device."""
    share = (record.global_batch_size or 0) / record.num_replicas
    known = (rank.rank, record.num_replicas, len(record.ranks), len(rank.replicas), share)
    return bool(_TOPOLOGY.search(name)) and value in known


def _finding(
    value: _Value,
    rank: RankRecord,
    replicas: int,
    message: str,
    cause: str = "metric-wrong",
    evidence: str | None = None,
) -> Finding:
    found = difference(value.actual, value.desired)
    by_hand = cause == "metric-wrong" and _is_by_hand(value, rank)
    return Finding(
        check=CHECK,
        message=message,
        cause=cause,
        step=value.step,
        variable=value.name,
        worker=rank.rank,
        error=found.error,
        tolerance=value.bound.value,
        fix=SPECIAL["parts-of-a-value"] if by_hand else fix_of(cause),
        observed=found.actual,
        expected=found.desired,
        origin=value.bound.origin,
        a_priori=value.bound.a_priori,
        evidence=evidence or _by_ratio(value, replicas),
    )


def _is_by_hand(value: _Value, rank: RankRecord) -> bool:
    """Return whether a program computed a value itself: it keeps no metric, and no loop of Keras returned it."""
    if any(variable.kind is VariableKind.METRIC for variable in rank.variables):
        return False
    of_keras = value.name.split("/")[0].split("[")[0].split("#")[0] in ("fit", "evaluate", "predict")
    return not of_keras and not any(RUNNING_MEAN in step.values for step in rank.steps)


def _by_ratio(value: _Value, replicas: int) -> str | None:
    actual, desired, bound = value.actual, value.desired, value.bound.value
    if actual.shape != desired.shape or not all_finite(actual):
        return None
    if replicas > 1 and difference(actual, desired * replicas).error <= bound * replicas:
        return f"it is {replicas} x the value of one device, as if means of the {replicas} replicas were added up"
    if replicas > 1 and difference(actual, desired / replicas).error <= bound:
        return f"it is 1/{replicas} of the value of one device: a mean of parts, or the part of one replica"
    return None
