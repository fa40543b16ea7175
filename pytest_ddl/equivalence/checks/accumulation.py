"""ACCUM: micro-batches add up to the update of one batch, and weights do not move between updates.

Each run is judged by itself, by arithmetic. The check takes the gradients that were handed to the optimizer or, for an
update by hand, the change of the weights. It solves them for the gradients that were computed up to then. An update is
right if all micro-batches since the last update have equal weights and older ones have none. A plain update in every
step is right too. An update that no such sum explains (clipped, or transformed otherwise) is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import difference, magnitude
from pytest_ddl.equivalence.evidence.combination import Weights
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import counted_updates, moved, settings_of, stands_still
from pytest_ddl.equivalence.evidence.micro_batches import Group, MicroBatch, Window, groups_of
from pytest_ddl.equivalence.evidence.observe import sizes
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, not_applicable, passed
from pytest_ddl.records import TrainingRecord

CHECK = "ACCUM"
CAUSE = "gradient-accumulation-wrong"
_BIAS_CORRECTED = ("Adam", "AdamW", "Nadam", "Adamax", "Lamb")
_WHOLE = 1e-6
"""Largest relative distance of a factor from a whole number: a few times the roundoff of float32."""


@dataclass(frozen=True)
class _Fault:
    step: int
    message: str
    evidence: str
    variable: str | None = None


def check_accumulation(comparison: Comparison) -> CheckResult:
    """Solve each update of both runs for the micro-batches that it is made of."""
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    if not (gradients.observed(distributed) or gradients.observed(reference)):
        return not_applicable(CHECK, "gradients were not recorded")
    ours, theirs = (list(groups_of(record, tolerance)) for record in (reference, distributed))
    for groups, where in ((theirs, ""), (ours, " (on one device too)")):
        faults = (found for group in groups for find in (_sum, _in_between, _replicas) if (found := find(group)))
        fault = next(faults, None) or _starved(groups)
        if fault is not None:
            return failed(CHECK, [_finding(fault, where)])
    if not any(group.accumulates for group in (*ours, *theirs)):
        return not_applicable(CHECK, "no gradients of several steps or calls are added up before an update")
    fault = _unlike(ours, theirs)
    if fault is not None:
        return failed(CHECK, [_finding(fault)])
    return passed(
        CHECK, "every update is the sum of the micro-batches since the last update, and nothing moves in between"
    )


def _sum(group: Group) -> _Fault | None:
    """Find micro-batches that stay in the sum after an update, are missing, or count several times."""
    for window in group.windows():
        step, every = window.step, [*window.older, *window.current]
        if group.factor(step, window.current, group.slack(step, every)) is not None:
            continue
        solved = group.weights(step, every)
        if solved is None:
            continue
        names = ", ".join(variable.name for variable in group.variables[:3])
        evidence = f"the update of {names} in step {step} is the sum of all gradients so far {_weighted(solved)}"
        stale, current = solved.values[: len(window.older)], solved.values[len(window.older) :]
        error = max(solved.slack)
        if stale and all(abs(weight - current[-1]) <= 2 * error for weight in solved.values) and current[-1]:
            since = "all steps so far, not only of those since the last update"
            message = f"the update in step {step} adds up the gradients of {since}: the accumulators are never reset"
            return _Fault(step, message, evidence, group.variables[0].name)
        if any(abs(weight) > error for weight in stale):
            continue  # momentum by hand, averages of gradients: older steps count on purpose
        what = _miscounted(current, error) if window.spans_steps and _same_sizes(group.record, window) else None
        if what is not None:
            return _Fault(step, f"the update in step {step} {what} some of its micro-batches", evidence)
    return None


def _miscounted(weights: Sequence[float], error: float) -> str | None:
    """Describe what is wrong with the weights of the micro-batches; ``None`` if the weights may be intended."""
    counting = [weight for weight in weights if abs(weight) > error]
    if not counting:
        return None
    ratios = [weight / min(counting) for weight in weights]
    if not all(abs(ratio - round(ratio)) <= 2 * error / min(counting) for ratio in ratios):
        return None  # weighted on purpose
    if len(counting) == len(weights):
        return "counts several times" if any(round(ratio) > 1 for ratio in ratios) else None
    # A program may use one micro-batch and drop the others. If that one counts with its share of all of them, it was
    # assigned instead of added.
    overwritten = len(counting) == 1 and abs(counting[0] * len(weights) - 1) <= 2 * error * len(weights)
    return "leaves out" if len(counting) > 1 or overwritten else None


def _same_sizes(record: TrainingRecord, window: Window) -> bool:
    totals = {sum(sizes(record, step).values()) for step in {batch.step for batch in window.current}}
    return len(totals) == 1 and 0 not in totals


def _replicas(group: Group) -> _Fault | None:
    """Find replicas whose micro-batches do not count, or count again, although those of other replicas count once.

    Each replica may keep accumulators of its own. Right weights are equal for all replicas. If one replica counts in
    full and another does not count at all, one of them has lost what it accumulated, or has kept it after an update.
    """
    odd = [w.step for w in group.windows() if group.factor(w.step, w.current) is None]
    if group.record.num_replicas < 2 or not odd:
        return None
    for window in group.windows(group.of_replicas()):
        if not window.spans_steps or window.step not in odd:
            continue
        for older in sorted({0, len(window.older)}):
            solved = group.weights(window.step, [*window.older[:older], *window.current])
            message = _unequal(window, older, solved) if solved is not None else None
            if solved is not None and message is not None:
                evidence = f"the update is the sum of each micro-batch's gradients on each replica {_weighted(solved)}"
                return _Fault(window.step, message, evidence, group.variables[0].name)
    return None


def _unequal(window: Window, older: int, solved: Weights) -> str | None:
    """Say which replicas lost or kept their micro-batches, of which the first ``older`` precede the last update."""
    error, largest = max(solved.slack), max(map(abs, solved.values))
    batches = [*window.older[:older], *window.current]
    replicas = sorted({batch.replica for batch in batches})
    stale: dict[int, list[float]] = {replica: [] for replica in replicas}
    current: dict[int, list[float]] = {replica: [] for replica in replicas}
    for number, (batch, weight) in enumerate(zip(batches, solved.values, strict=True)):
        (stale if number < older else current)[batch.replica].append(weight)

    def whole(values: Sequence[float]) -> bool:
        return bool(values) and all(abs(value - largest) <= 2 * error for value in values)

    def nothing(values: Sequence[float]) -> bool:
        return all(abs(value) <= 2 * error for value in values)

    # A replica that counts in part was weighted, for example by its number of examples.
    if not all(whole(values) or nothing(values) for values in current.values()):
        return None
    lost = [replica for replica in replicas if nothing(current[replica])]
    kept = [replica for replica in replicas if whole(stale[replica])]
    if lost and len(lost) < len(replicas) and all(map(nothing, stale.values())):
        return f"the update in step {window.step} leaves out what replica {_listed(lost)} accumulated"
    rest = [replica for replica in replicas if replica not in kept]
    if kept and rest and not lost and all(nothing(stale[replica]) for replica in rest):
        return (
            f"the update in step {window.step} adds gradients from before step {window.since} again on replica "
            f"{_listed(kept)}: its accumulators are not reset"
        )
    return None


def _in_between(group: Group) -> _Fault | None:
    """Find steps that only accumulate but in which the optimizer acts."""
    if not group.updates or not group.accumulates:
        return None
    computed = sorted({batch.step for batch in group.batches})
    quiet = [step for step in computed if step not in group.updates and step < max(group.updates)]
    quiet += [step for step in group.withheld if step not in quiet]
    # Zeros are no fault by themselves: plain SGD does nothing with them. An update by hand has no optimizer.
    for step in [] if group.by_hand else quiet:
        moving = [variable for variable in group.variables if moved(group.record, variable, step)]
        if moving:
            given = "zeros were handed to the optimizer" if step in group.withheld else "nothing was handed over"
            return _Fault(
                step,
                f"{moving[0].name} moves in step {step}, which only accumulates: {given}, and momentum, moments or "
                "weight decay still act",
                f"the optimizer got no gradient other than 0 in step {step}, but {len(moving)} of "
                f"{len(group.variables)} weights changed",
                moving[0].name,
            )
    kind, _settings = settings_of(group.record)
    counting = [step for step in group.withheld if counted_updates(group.record, step)]
    if counting and kind in _BIAS_CORRECTED:
        return _Fault(
            counting[0],
            f"the optimizer counts step {counting[0]}, which only accumulates, as an update",
            f"{kind} got zeros in step {counting[0]}, but increased its count of updates, which corrects its moments",
        )
    return None


def _starved(groups: Sequence[Group]) -> _Fault | None:
    """Find an optimizer that never updates, while another one updates after fewer micro-batches than it divides by.

    Both then share one counter of micro-batches.
    """
    # A mean over several replicas is such a factor, too.
    record = groups[0].record if groups else None
    optimizers = record.ranks[0].optimizers if record is not None else ()
    if record is None or len(optimizers) < 2 or record.num_steps < 2 or record.num_replicas != 1:
        return None
    for never in groups:
        busy = len({batch.step for batch in never.batches}) == record.num_steps
        if never.updates or not busy or not all(stands_still(record, variable) for variable in never.variables):
            continue
        for often in groups:
            for window in often.windows():
                number, factor = len(window.current), often.factor(window.step, window.current)
                taken = round(1 / factor) if factor and 0 < factor <= 0.5 else 1
                if factor and number < taken and abs(factor * taken - 1) <= _WHOLE:
                    return _Fault(
                        1,
                        f"{never.variables[0].name} is never updated, and {often.variables[0].name} is updated after "
                        f"every {number} of {taken} micro-batches: the optimizers share one counter",
                        f"in step {window.step} the optimizer got 1/{taken} of the sum of {number} gradient(s)",
                        never.variables[0].name,
                    )
    return None


def _unlike(ours: Sequence[Group], theirs: Sequence[Group]) -> _Fault | None:
    """Find right gradients that the accumulators add up differently than on one device."""
    for left, right in zip(ours, theirs, strict=False):
        if [v.index for v in left.variables] != [v.index for v in right.variables]:
            return None
        if not left.accumulates:
            continue
        if left.updates != right.updates:
            step = min(set(left.updates) ^ set(right.updates))
            where = "on one device" if step in left.updates else "under the strategy"
            evidence = f"updates take place in steps {right.updates}, on one device in steps {left.updates}"
            return _Fault(step, f"step {step} updates the weights only {where}", evidence, left.variables[0].name)
        # After the first update weights may differ, and therefore gradients.
        windows = next(zip(left.windows(), right.windows(), strict=False), None)
        fault = _unlike_sums(left, right, *windows) if windows and windows[0].spans_steps else None
        if fault is not None:
            return fault
    return None


def _unlike_sums(ours: Group, theirs: Group, mine: Window, other: Window) -> _Fault | None:
    """Compare the first update of both runs, if their micro-batches are equal."""
    step, slack = mine.step, ours.slack(mine.step, mine.current)
    loose = {index: theirs.record.num_replicas * value for index, value in slack.items()}
    expected, actual = ours.factor(step, mine.current, slack), theirs.factor(step, other.current, loose)
    if not expected or not _equal(mine.current, other.current, loose, ours.tolerance):
        return None
    name = ours.variables[0].name
    if actual is None:
        solved = theirs.weights(step, other.current)
        if solved is None or not any(abs(w) <= e for w, e in zip(solved.values, solved.slack, strict=True)):
            return None
        message = f"the update in step {step} leaves out micro-batches that one device adds up"
        return _Fault(step, message, f"it is the sum of the micro-batches {_weighted(solved)}", name)
    times = actual / expected
    if round(times) > 1 and abs(times - round(times)) < _WHOLE:
        return _Fault(
            step,
            f"the accumulated gradient in step {step} is {times:.4g} times that of one device",
            "the replicas' gradients add up to those of one device in every micro-batch, so the accumulators "
            "count them several times",
            name,
        )
    return None


def _equal(
    ours: Sequence[MicroBatch], theirs: Sequence[MicroBatch], slack: Mapping[int, float], tolerance: Tolerance
) -> bool:
    return len(ours) == len(theirs) and all(
        difference(value, right.values[i]).error
        <= slack[i] + gradients.slack(tolerance, i, left.step, magnitude(value))
        for left, right in zip(ours, theirs, strict=True)
        for i, value in left.values.items()
    )


def _weighted(solved: Weights) -> str:
    return f"weighted by ({', '.join(f'{weight:.3g}' for weight in solved.values)})"


def _listed(replicas: Sequence[int]) -> str:
    return ", ".join(map(str, replicas))


def _finding(fault: _Fault, where: str = "") -> Finding:
    return Finding(
        check=CHECK,
        message=fault.message + where,
        cause=CAUSE,
        step=fault.step,
        variable=fault.variable,
        evidence=fault.evidence,
    )
