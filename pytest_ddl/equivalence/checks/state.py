"""STATE-EQ: non-trainable state equals that of one device. It is read by its declared reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.diagnosis.afterwards import changed_afterwards
from pytest_ddl.equivalence.evidence.arrays import difference, is_numeric, same
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, is_loss_scale, is_seed, is_uneven, of_kind
from pytest_ddl.equivalence.evidence.one_sided import lone_variables
from pytest_ddl.equivalence.evidence.tolerance import Decision, Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Diagnosis, Finding, Grounds
from pytest_ddl.equivalence.outcomes import (
    failed,
    finding_at,
    inconclusive,
    no_steps,
    not_applicable,
    passed,
    unmatched,
    wide,
)  # fmt: skip
from pytest_ddl.records import Array, TrainingRecord, VariableKind, VariableRecord

CHECK = "STATE-EQ"

_SHARES = "it changes by 1/N of the change on one device: each replica holds a share of a sum, and shares are averaged"
_OF_SHARES = (
    "Add the shares up: make the variable with aggregation=tf.VariableAggregation.SUM, or reduce the value with "
    "get_replica_context().all_reduce('sum', value) before it is assigned."
)


def check_state(reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> CheckResult:
    """Compare the state besides weights that a step may change: statistics, averages, counters, program buffers."""
    comparison = Comparison(reference, distributed, tolerance)
    structure = unmatched(CHECK, reference, distributed, (VariableKind.STATE,), "state-not-aggregated")
    if structure:
        return failed(CHECK, structure)
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(
            of_kind(reference, VariableKind.STATE), of_kind(distributed, VariableKind.STATE), strict=False
        )
        if not is_seed(theirs)
    ]
    if not pairs:
        return not_applicable(CHECK, "no non-trainable state was watched (check SEED judges states of generators)")
    steps = comparison.steps
    if steps == 0:
        return no_steps(CHECK, distributed)
    if is_asynchronous(distributed):
        return not_applicable(CHECK, "the steps ran concurrently, so that state between them belongs to no step")
    diverged = comparison.differences().step
    findings: list[Finding] = []
    reasons: list[str] = []
    compared = 0
    for ours, theirs in pairs:
        # State after the step in which weights differ follows from the weights.
        found = _first_difference(comparison, ours, theirs, diverged or steps)
        if isinstance(found, int):
            compared += found
        elif found.bound.judge(found.difference.error) is Decision.UNDECIDED:
            reasons.append(wide(found))
        else:
            findings.append(_finding(comparison, found, theirs, diverged))
    if findings:
        return failed(CHECK, _first_of_each_cause(findings))
    if reasons:
        return inconclusive(CHECK, reasons[0])
    unread = lone_variables(reference, distributed, (VariableKind.STATE,))
    if unread is not None:
        return inconclusive(CHECK, unread)
    final = None if diverged else changed_afterwards(CHECK, comparison, (VariableKind.STATE,))
    if final is not None:
        return final
    if compared == 0:
        return not_applicable(CHECK, "every state is local to its replica by declaration (ON_READ without aggregation)")
    last = f"up to step {diverged}, where weights differ" if diverged else f"over {steps} steps"
    return passed(CHECK, f"{len(pairs)} variable(s), {compared} values {last}")


def _first_difference(comparison: Comparison, ours: VariableRecord, theirs: VariableRecord, last: int) -> Place | int:
    """Return the worst value at the first step with one beyond its bound, or else the number of compared values."""
    compared = 0
    undecided: Place | None = None
    late = max(ours.since, theirs.since)
    for step in range(late, last + 1):
        desired = comparison.reference.value(ours.index, step)
        if desired is None:
            continue  # first watched after that step was recorded
        bound = comparison.tolerance.variable(ours.index, step)
        places = []
        for rank, replica, value in _readings(comparison.distributed, theirs, step):
            compared += 1
            scale = 2.0 if is_numeric(value) and _is_reduced(theirs) else 1.0
            held = replace(bound, value=bound.value * scale)  # combining the components rounds once more
            found = difference(value, desired)
            undecidable = held.judge(found.error) is Decision.UNDECIDED
            if undecidable and not comparison.tolerance.is_gross(ours.index, step, value, desired):
                continue
            places.append(Place(ours, step, rank, replica, found, held))
        worst = max(places, key=lambda place: place.difference.error, default=None)
        decision = worst.bound.judge(worst.difference.error) if worst else Decision.WITHIN
        if worst and decision is Decision.BEYOND:
            return worst
        if worst and decision is Decision.UNDECIDED:
            undecided = undecided or worst
    return undecided or compared


def _is_reduced(variable: VariableRecord) -> bool:
    return "on_read" in variable.synchronization.lower()


def _readings(record: TrainingRecord, variable: VariableRecord, step: int) -> list[tuple[int, int, Array]]:
    """Return ``(rank, replica, value)`` as the program reads it: every copy, or the declared reduction of all."""
    parts = [
        (rank.rank, replica, np.asarray(value)) for rank, replica, value in record.components(variable.index, step)
    ]
    if not _is_reduced(variable) or not parts:
        return parts
    if not all(is_numeric(value) for _rank, _replica, value in parts):
        return []
    values = [value.astype(np.float64) for _rank, _replica, value in parts]
    aggregation = variable.aggregation.lower()
    if "mean" in aggregation:
        return [(*parts[0][:2], sum(values) / len(values))]  # type: ignore[list-item]
    if "sum" in aggregation:
        return [(*parts[0][:2], sum(values))]  # type: ignore[list-item]
    return parts[:1] if "first" in aggregation else []


def _finding(comparison: Comparison, place: Place, theirs: VariableRecord, diverged: int | None) -> Finding:
    cause, evidence, exact = _cause(comparison, place, theirs, diverged)
    when = "before the first step" if place.step == 0 else f"after step {place.step}"
    how = f" (read as {theirs.aggregation} of the replicas)" if _is_reduced(theirs) else ""
    message = f"{place.variable.name}{how} differs from one device {when}"
    tolerated = cause == "mean-of-replica-means"
    grounds = Grounds.RECOMPUTED if exact else Grounds.PATTERN
    diagnosis = Diagnosis(cause, evidence, approximation=tolerated, grounds=grounds) if evidence else None
    finding = finding_at(CHECK, place, message, cause, diagnosis)
    return replace(finding, fix=_OF_SHARES) if evidence == _SHARES else finding


def _cause(
    comparison: Comparison,
    place: Place,
    theirs: VariableRecord,
    diverged: int | None,
) -> tuple[str | None, str, bool]:
    """Return the cause of a state's difference, its evidence, and whether it was recomputed."""
    reference, distributed = comparison.records
    step = place.step
    if step == 0:
        return "initial-weights-differ", "", True
    copies = [np.asarray(value) for _rank, _replica, value in distributed.components(theirs.index, step)]
    # Copies that differ were not aggregated, for whatever reason they differ.
    if not _is_reduced(theirs) and any(not same(copy, copies[0]) for copy in copies[1:]):
        scale = is_loss_scale(distributed, theirs)
        cause = "loss-scale-not-synchronised" if scale else "state-not-aggregated"
        return cause, _apart(reference, place, copies), True
    if "mean" in theirs.aggregation.lower() and is_uneven(distributed, step):
        evidence = "replicas with different numbers of examples count equally in the declared mean"
        return "mean-of-replica-means", evidence, True
    # The record holds no activations. So statistics of the replica's own examples can be suspected but not recomputed.
    plain = [
        layer for rank in distributed.ranks[:1] for layer in rank.layers if layer.settings.get("synchronized") is False
    ]
    layer = next((layer.name for layer in plain if layer.name in theirs.name.split("/")), None)
    if layer is not None:
        return "per-replica-normalization", f"consistent with it: {layer} is not synchronized", False
    # One device adds 1 in each step. With any other growth it counts something else, for example replicas.
    desired, before = (reference.value(place.variable.index, at) for at in (step, step - 1))
    if desired is not None and before is not None and desired.dtype.kind in "iu" and np.all(desired - before == 1):
        counted = f"it counts steps, but grows by {_growth(distributed, theirs, step)} per step instead of 1"
        return "iteration-count-wrong", counted, True
    if "mean" in theirs.aggregation.lower() and _multiple(comparison, place, theirs, 1 / distributed.num_replicas):
        return "state-not-aggregated", _SHARES, True
    if (multiple := _multiple(comparison, place, theirs)) is not None:
        return "state-scaled-by-replica-count", multiple, True
    if (summed := _sum_of_equal_values(comparison, place, theirs)) is not None:
        return "state-scaled-by-replica-count", summed, True
    parts = comparison.tolerance.slices_at(step).replicas
    for replica in sorted(parts):
        alone = parts[replica].value(place.variable.index, step)
        if alone is not None and copies and difference(copies[0], alone).error <= place.bound.value:
            evidence = f"it has the value that only the examples of replica {replica} give"
            return "state-not-aggregated", evidence, True
    if _of_an_optimizer(distributed, theirs):
        return "optimizer-state-mismatch", "", True
    if diverged is not None and diverged <= step:
        # The state may only follow the weights, so its declaration is no evidence.
        return None, "", True
    evidence = f"consistent with it: aggregation is {theirs.aggregation}, synchronization {theirs.synchronization}"
    return "state-not-aggregated", evidence, False


def _multiple(comparison: Comparison, place: Place, theirs: VariableRecord, factor: float | None = None) -> str | None:
    """Describe a change of a state that is a factor times that of one device; ``None`` otherwise.

    :param factor: default: the number of replicas.
    """
    reference, distributed = comparison.records
    number, index, step = factor or float(distributed.num_replicas), place.variable.index, place.step
    before, after = (reference.value(index, at) for at in (step - 1, step))
    read = [_readings(distributed, theirs, at) for at in (step - 1, step)]
    if distributed.num_replicas < 2 or before is None or after is None or not is_numeric(after) or not all(read):
        return None
    change = np.subtract(after, before, dtype=np.float64)
    others = np.subtract(read[1][0][2], read[0][0][2], dtype=np.float64)
    if not np.any(change) or difference(others, number * change).error > max(1.0, number) * place.bound.value:
        return None
    return f"it changes by {number:g} times as much as on one device, and there are {number:g} replicas"


def _sum_of_equal_values(comparison: Comparison, place: Place, theirs: VariableRecord) -> str | None:
    """Describe a value that is the number of replicas times that of one device, if assignments are summed."""
    reference, distributed = comparison.records
    number, after = distributed.num_replicas, reference.value(place.variable.index, place.step)
    read = _readings(distributed, theirs, place.step)
    summed = "sum" in theirs.aggregation.lower() and number > 1
    if not summed or after is None or not is_numeric(after) or not read or not np.any(after):
        return None
    desired = number * np.asarray(after, np.float64)
    if difference(np.asarray(read[0][2], np.float64), desired).error > number * place.bound.value:
        return None
    return f"every replica assigns the value of one device, and aggregation=SUM adds the {number} values up"


def _of_an_optimizer(record: TrainingRecord, variable: VariableRecord) -> bool:
    """Return whether a state belongs to an optimizer.

    Keras 3 prefixes an optimizer's variables with its name. Variables that are no slot of a weight count as state.
    """
    owners = {counter.name.split("/")[0] for counter in of_kind(record, VariableKind.ITERATIONS) if "/" in counter.name}
    return variable.name.split("/")[0] in owners


def _apart(reference: TrainingRecord, place: Place, copies: Sequence[Array]) -> str:
    evidence = f"the {len(copies)} copies differ from each other"
    desired = reference.value(place.variable.index, place.step)
    if desired is None or not all(is_numeric(copy) for copy in copies):
        return evidence
    average = sum(copy.astype(np.float64) for copy in copies) / len(copies)
    if difference(np.asarray(average), desired).error <= 2 * place.bound.value:
        evidence += ", and their mean is the value of one device"
    return evidence


def _growth(record: TrainingRecord, variable: VariableRecord, step: int) -> str:
    now, before = (_readings(record, variable, at)[0][2] for at in (step, step - 1))
    return f"{float(np.max(now.astype(np.float64) - before.astype(np.float64))):g}"


def _first_of_each_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Keep the earliest finding of each cause. Its message gives the number of the other findings."""
    kept: dict[tuple[str | None, bool], list[Finding]] = {}
    for finding in sorted(findings, key=lambda one: one.step or 0):
        # A cause that was recomputed for one variable is not proven for another one.
        kept.setdefault((finding.cause, finding.exact), []).append(finding)
    return [
        replace(group[0], message=f"{group[0].message} (with {len(group) - 1} other variable(s))")
        if len(group) > 1
        else group[0]
        for group in kept.values()
    ]
