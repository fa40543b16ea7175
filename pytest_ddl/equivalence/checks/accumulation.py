"""ACCUM: micro-batches add up to the update of one batch, and nothing moves in between.

Each run is judged by itself, by arithmetic. The check takes the gradients that were handed to the optimizer or, for an
update by hand, the change of the weights. It solves them for the gradients that were computed up to then. An update is
right if all micro-batches since the last update have equal weights and older ones have none. A plain update in every
step is right too. An update that no such sum explains (clipped, or transformed otherwise) is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.diagnosis.accumulation_parts import unequal_replicas
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.combination import Weights, solve
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import moved, settings_of
from pytest_ddl.equivalence.evidence.gradients import by_replica, calls, observed, total
from pytest_ddl.equivalence.evidence.observe import of_kind, sizes, update
from pytest_ddl.equivalence.evidence.tolerance import Tolerance, unit_roundoff
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, not_applicable, passed
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord

CHECK = "ACCUM"
CAUSE = "gradient-accumulation-wrong"
_BIAS_CORRECTED = ("Adam", "AdamW", "Nadam", "Adamax", "Lamb")


@dataclass(frozen=True)
class Unit:
    """Gradients of one call of the tape, summed over replicas: one micro-batch."""

    step: int
    values: dict[int, Float]


@dataclass(frozen=True)
class Group:
    """Weights whose gradients come from the same calls, and their updates in each step."""

    variables: tuple[VariableRecord, ...]
    units: tuple[Unit, ...]
    handed: Mapping[int, dict[int, Float]]
    """Step -> the gradients handed over in it, summed over all replicas. Steps without a call are absent."""

    @property
    def updates(self) -> list[int]:
        return [step for step, values in self.handed.items() if any(np.any(value) for value in values.values())]

    @property
    def withheld(self) -> list[int]:
        """Steps in which only zeros were handed over although gradients were computed."""
        computed = {unit.step for unit in self.units if any(np.any(value) for value in unit.values.values())}
        return [step for step in self.handed if step not in self.updates and step in computed]


@dataclass(frozen=True)
class _Fault:
    step: int
    message: str
    evidence: str
    variable: str | None = None
    exact: bool = True


def check_accumulation(reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> CheckResult:
    """Solve each update of both runs for the micro-batches that it is made of."""
    comparison = Comparison(reference, distributed, tolerance)
    if not (observed(distributed) or observed(reference)):
        return not_applicable(CHECK, "gradients were not recorded")
    accumulating = 0
    for record, where in ((distributed, ""), (reference, " (on one device too)")):
        groups = list(groups_of(record))
        for group in groups:
            fault = (
                _sum(record, group, tolerance)
                or _in_between(record, group, tolerance)
                or _replicas(record, group, tolerance)
            )
            if fault is not None:
                return failed(CHECK, [_finding(fault, where if record is reference else "")])
            accumulating += accumulates(record, group, tolerance)
        starved = _starved(record, groups, tolerance)
        if starved is not None:
            return failed(CHECK, [_finding(starved, where if record is reference else "")])
    if not accumulating:
        return not_applicable(CHECK, "no gradients of several steps or calls are added up before an update")
    fault = _unlike(comparison)
    if fault is not None:
        return failed(CHECK, [_finding(fault, "")])
    return passed(CHECK, "every update is the sum of the micro-batches since the last, and nothing moves in between")


def groups_of(record: TrainingRecord) -> Iterator[Group]:
    """Group the weights by the calls that compute their gradients."""
    trainable = {v.index: v for v in of_kind(record, VariableKind.TRAINABLE)}
    units = _units(record, trainable)
    by_hand = not any(calls(record, step, GradientStage.APPLIED) for step in range(1, record.num_steps + 1))
    given = {
        step: _changed(record, step) if by_hand else total(by_replica(record, step, GradientStage.APPLIED))
        for step in range(1, record.num_steps + 1)
    }
    patterns: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for index in trainable:
        computed = tuple(n for n, unit in enumerate(units) if index in unit.values)
        due = tuple(step for step, values in given.items() if index in values and np.any(values[index]))
        if computed:
            patterns.setdefault((computed, due), []).append(index)
    for (pattern, _due), indices in patterns.items():
        handed = {}
        for step, every in given.items():
            values = {index: every[index] for index in indices if index in every}
            if values and all(map(all_finite, values.values())) and (not by_hand or any(map(np.any, values.values()))):
                handed[step] = values
        members = tuple(Unit(units[n].step, {i: units[n].values[i] for i in indices}) for n in pattern)
        if all(all_finite(value) for unit in members for value in unit.values.values()):
            yield Group(tuple(trainable[index] for index in indices), members, handed)


def _units(record: TrainingRecord, trainable: Mapping[int, VariableRecord]) -> list[Unit]:
    found: dict[tuple[int, int], dict[int, Float]] = {}
    for step in range(1, record.num_steps + 1):
        for item in calls(record, step, GradientStage.COMPUTED):
            added = found.setdefault((step, item.call), {})
            for index, value in item.values.items():
                if value is not None and index in trainable:
                    dense = np.asarray(value, np.float64)
                    added[index] = added[index] + dense if index in added else dense
    return [Unit(step, values) for (step, _call), values in sorted(found.items()) if values]


def _changed(record: TrainingRecord, step: int) -> dict[int, Float]:
    found = ((v.index, update(record, v.index, step)) for v in of_kind(record, VariableKind.TRAINABLE))
    return {index: -change for index, change in found if change is not None}


def _windows(group: Group) -> Iterator[tuple[int, list[Unit], list[Unit]]]:
    """Yield ``(step, units since the last update, older units)`` of each update."""
    for before, step in pairwise([0, *group.updates]):
        window = [unit for unit in group.units if before < unit.step <= step]
        older = [unit for unit in group.units if unit.step <= before]
        if window:
            yield step, window, older


def _slack(
    record: TrainingRecord, group: Group, units: Sequence[Unit], step: int, tolerance: Tolerance
) -> dict[int, float]:
    """Return the rounding error of a sum of micro-batches, and of a weight to which it is added."""
    found = {}
    for variable in group.variables:
        roundoff = max(unit_roundoff(variable.dtype), tolerance.compute_roundoff)
        parts = [*[unit.values for unit in units], group.handed[step]]
        scale = sum(magnitude(part[variable.index]) for part in parts if variable.index in part)
        stored = unit_roundoff(variable.dtype) * magnitude(record.value(variable.index, step))
        by_hand = not calls(record, step, GradientStage.APPLIED)
        length = len(units) + record.num_replicas
        found[variable.index] = 2 * tolerance.gamma(length, roundoff) * scale + (4 * stored if by_hand else 0.0)
    return found


def _plain(group: Group, units: Sequence[Unit], step: int, slack: Mapping[int, float]) -> float | None:
    """Return the factor by which an update is the plain sum of some units; ``None`` if it is no such sum."""
    handed = group.handed[step]
    summed = {index: np.sum([unit.values[index] for unit in units], axis=0) for index in handed}
    left, right = (np.concatenate([np.ravel(g[index]) for index in handed]) for g in (handed, summed))
    factor = coefficient(left, right)
    if not factor:
        return None
    # Rounding changes the factor as much as the sum, relative to the size of the sum.
    allowed = {i: slack[i] * max(1.0, abs(factor)) + max(slack.values()) * _relative(summed[i], right) for i in handed}
    fits = all(difference(handed[i], factor * summed[i]).error <= allowed[i] for i in handed)
    return factor if fits else None


def _relative(value: Float, every: Float) -> float:
    largest = magnitude(every)
    return magnitude(value) / largest if largest else 0.0


def _solved(
    record: TrainingRecord, group: Group, step: int, units: Sequence[Unit], tolerance: Tolerance
) -> Weights | None:
    slack = _slack(record, group, units, step, tolerance)
    parts = [{index: unit.values[index] for index in group.handed[step]} for unit in units]
    return solve(group.handed[step], parts, slack)


def accumulates(record: TrainingRecord, group: Group, tolerance: Tolerance) -> bool:
    """Return whether some update is the sum of the gradients of several steps."""
    for step, window, _older in _windows(group):
        slack = _slack(record, group, window, step, tolerance)
        if len({unit.step for unit in window}) > 1 and _plain(group, window, step, slack) is not None:
            return True
    return False


def _sum(record: TrainingRecord, group: Group, tolerance: Tolerance) -> _Fault | None:
    """Find micro-batches that are still in the sum after an update, are missing, or count several times."""
    for step, window, older in _windows(group):
        slack = _slack(record, group, [*older, *window], step, tolerance)
        if _plain(group, window, step, slack) is not None:
            continue
        solved = _solved(record, group, step, [*older, *window], tolerance)
        if solved is None:
            continue
        names = ", ".join(variable.name for variable in group.variables[:3])
        weights = ", ".join(f"{weight:.3g}" for weight in solved.values)
        told = f"the update of {names} in step {step} is the sum of the gradients up to then weighted by ({weights})"
        stale, current = solved.values[: len(older)], solved.values[len(older) :]
        error = max(solved.slack)
        if stale and all(abs(weight - current[-1]) <= 2 * error for weight in solved.values) and current[-1]:
            since = "all steps so far, and not those since the last update"
            message = f"the update in step {step} adds up the gradients of {since}: the accumulators are never reset"
            return _Fault(step, message, told, group.variables[0].name)
        if any(abs(weight) > error for weight in stale):
            continue  # momentum by hand, averages of gradients: older steps count on purpose
        counted = [weight for weight in current if abs(weight) > error]
        if len({unit.step for unit in window}) < 2 or not counted or not _same_sizes(record, window):
            continue
        ratios = [weight / min(counted) for weight in current]
        whole = all(abs(ratio - round(ratio)) <= 2 * error / min(counted) for ratio in ratios)
        # If only one micro-batch counts, with its share of all of them, it was assigned instead of added.
        overwritten = len(counted) == 1 and abs(counted[0] * len(current) - 1) <= 2 * error * len(current)
        missing = len(counted) < len(current) and (len(counted) > 1 or overwritten)
        repeated = len(counted) == len(current) and any(round(ratio) > 1 for ratio in ratios)
        if whole and (missing or repeated):
            what = "leaves out" if missing else "counts several times"
            return _Fault(step, f"the update in step {step} {what} some of its micro-batches", told)
    return None


def _replicas(record: TrainingRecord, group: Group, tolerance: Tolerance) -> _Fault | None:
    """Find replicas whose micro-batches count in full beside others that do not count, or count again."""
    if record.num_replicas < 2:
        return None
    odd = [
        step
        for step, window, _older in _windows(group)
        if _plain(group, window, step, _slack(record, group, window, step, tolerance)) is None
    ]
    found = unequal_replicas(record, group.variables, group.updates, dict(group.handed), tolerance) if odd else None
    return _Fault(*found, group.variables[0].name) if found else None


def _same_sizes(record: TrainingRecord, window: Sequence[Unit]) -> bool:
    found = {sum(sizes(record, step).values()) for step in {unit.step for unit in window}}
    return len(found) == 1 and 0 not in found


def _in_between(record: TrainingRecord, group: Group, tolerance: Tolerance) -> _Fault | None:
    """Find steps that only accumulate but in which the optimizer acts."""
    if not group.updates or not accumulates(record, group, tolerance):
        return None
    computed = {unit.step for unit in group.units}
    quiet = [step for step in sorted(computed) if step not in group.updates and step < max(group.updates)]
    quiet += [step for step in group.withheld if step not in quiet]
    for step in quiet:
        moving = [variable for variable in group.variables if moved(record, variable, step)]
        if moving and any(calls(record, at, GradientStage.APPLIED) for at in group.updates):
            given = "zeros were handed to the optimizer" if step in group.withheld else "nothing was handed over"
            return _Fault(
                step,
                f"{moving[0].name} moves in step {step}, which only accumulates: {given}, and momentum, moments or "
                "weight decay act all the same",
                f"what was handed to the optimizer in step {step} is exactly 0, and {len(moving)} of "
                f"{len(group.variables)} weights changed",
                moving[0].name,
            )
    kind, _settings = settings_of(record)
    counted = [step for step in group.withheld if _counts(record, step)]
    if counted and kind in _BIAS_CORRECTED:
        return _Fault(
            counted[0],
            f"the optimizer counts step {counted[0]}, which only accumulates, as an update",
            f"zeros were handed to {kind} in step {counted[0]} and its count of updates, by which it corrects its "
            "moments, went up",
        )
    return None


def _counts(record: TrainingRecord, step: int) -> bool:
    counters = of_kind(record, VariableKind.ITERATIONS)
    values = [record.value(counters[0].index, at) for at in (step - 1, step)] if len(counters) == 1 else []
    return len(values) == 2 and all(v is not None for v in values) and bool(values[0] != values[1])


def _starved(record: TrainingRecord, groups: Sequence[Group], tolerance: Tolerance) -> _Fault | None:
    """Find an optimizer that never updates, while another updates too often for the mean that it takes.

    Both then share one counter of micro-batches.
    """
    optimizers = record.ranks[0].optimizers if record.ranks else ()
    if len(optimizers) < 2 or record.num_steps < 2 or record.num_replicas != 1:
        return None
    for never in groups:
        busy = {unit.step for unit in never.units} == set(range(1, record.num_steps + 1))
        if never.updates or not busy or any(moved(record, v, s) for v in never.variables for s in _steps(record)):
            continue
        for often in groups:
            for step, window, _older in _windows(often):
                slack = _slack(record, often, window, step, tolerance)
                factor = _plain(often, window, step, slack)
                taken = round(1 / factor) if factor and 0 < factor <= 0.5 else 1
                if taken > 1 and len(window) < taken and factor and abs(factor * taken - 1) <= 1e-6:
                    return _Fault(
                        1,
                        f"{never.variables[0].name} is never updated, and {often.variables[0].name} after every "
                        f"{len(window)} of {taken} micro-batches: the optimizers share one counter",
                        f"in step {step} what was handed over is 1/{taken} of the sum of {len(window)} gradient(s)",
                        never.variables[0].name,
                    )
    return None


def _steps(record: TrainingRecord) -> range:
    return range(1, record.num_steps + 1)


def _unlike(comparison: Comparison) -> _Fault | None:
    """Find right gradients that the accumulators add up differently than on one device."""
    reference, distributed, tolerance = comparison.reference, comparison.distributed, comparison.tolerance
    for ours, theirs in zip(groups_of(reference), groups_of(distributed), strict=False):
        if [v.index for v in ours.variables] != [v.index for v in theirs.variables]:
            return None
        if not accumulates(reference, ours, tolerance):
            continue
        if ours.updates != theirs.updates:
            step = min(set(ours.updates) ^ set(theirs.updates))
            told = f"updates take place in steps {theirs.updates}, on one device in steps {ours.updates}"
            return _Fault(step, f"step {step} accumulates here and updates there", told, ours.variables[0].name)
        for (step, window, older), (_step, parts, _older) in zip(_windows(ours), _windows(theirs), strict=False):
            if older or len({unit.step for unit in window}) < 2:
                break  # after the first update, weights and therefore gradients may differ
            slack = _slack(reference, ours, window, step, tolerance)
            loose = {i: distributed.num_replicas * value for i, value in slack.items()}
            left, right = _plain(ours, window, step, slack), _plain(theirs, parts, step, loose)
            same = _equal_sums(window, parts, loose, reference, tolerance)
            if left and right is None and same and (fault := _left_out(distributed, theirs, step, parts, tolerance)):
                return fault
            if left and right and same and abs(right / left - round(right / left)) < 1e-6 and round(right / left) > 1:
                return _Fault(
                    step,
                    f"the accumulated gradient in step {step} is {right / left:.4g} times that of one device",
                    "the replicas' gradients add up to those of one device in every micro-batch: it is the "
                    "accumulators that count them several times",
                    ours.variables[0].name,
                )
    return None


def _left_out(
    record: TrainingRecord, group: Group, step: int, units: Sequence[Unit], tolerance: Tolerance
) -> _Fault | None:
    """Find micro-batches that count on one device but not here."""
    solved = _solved(record, group, step, units, tolerance)
    if solved is None or not any(abs(w) <= e for w, e in zip(solved.values, solved.slack, strict=True)):
        return None
    told = f"it is the sum of the micro-batches weighted by ({', '.join(f'{weight:.3g}' for weight in solved.values)})"
    message = f"the update in step {step} leaves out micro-batches that one device adds up"
    return _Fault(step, message, told, group.variables[0].name)


def _equal_sums(
    ours: Sequence[Unit],
    theirs: Sequence[Unit],
    slack: Mapping[int, float],
    reference: TrainingRecord,
    tolerance: Tolerance,
) -> bool:
    from pytest_ddl.equivalence.evidence.gradients import slack as rounding

    return len(ours) == len(theirs) and all(
        difference(left.values[i], right.values[i]).error
        <= slack[i] + rounding(tolerance, i, left.step, magnitude(left.values[i]))
        for left, right in zip(ours, theirs, strict=True)
        for i in left.values
    )


def _finding(fault: _Fault, where: str) -> Finding:
    return Finding(
        check=CHECK,
        message=fault.message + where,
        cause=CAUSE,
        step=fault.step,
        variable=fault.variable,
        fix=fix_of(CAUSE),
        evidence=fault.evidence,
        exact=fault.exact,
    )
