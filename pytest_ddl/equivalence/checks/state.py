"""STATE-EQ: non-trainable state equals that of one device. It is read by its declared reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.diagnosis.afterwards import changed_afterwards, not_ended
from pytest_ddl.equivalence.diagnosis.state_updates import (
    NOT_AGGREGATED,
    SCALED,
    copies_of,
    differ,
    is_read_on_demand,
    of_a_reduction,
    of_copies,
    readings,
    unexplained,
)
from pytest_ddl.equivalence.diagnosis.unequal_parts import of_unequal_parts, of_weights
from pytest_ddl.equivalence.evidence.arrays import difference, is_numeric
from pytest_ddl.equivalence.evidence.bounds import Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, is_loss_scale, is_seed, of_kind, owner_of
from pytest_ddl.equivalence.evidence.one_sided import lone_variables
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
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord

CHECK = "STATE-EQ"
SCALE = "loss-scale-not-synchronised"


def check_state(comparison: Comparison) -> CheckResult:
    """Compare the state besides weights that a step may change: statistics, averages, counters, program buffers."""
    reference, distributed = comparison.records
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
        return no_steps(CHECK, distributed, reference)
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
    final = (
        None
        if diverged
        else (changed_afterwards(CHECK, comparison, (VariableKind.STATE,)) or not_ended(CHECK, comparison))
    )
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
        for rank, replica, value in readings(comparison.distributed, theirs, step):
            compared += 1
            scale = 2.0 if is_numeric(value) and is_read_on_demand(theirs) else 1.0
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


def _finding(comparison: Comparison, place: Place, theirs: VariableRecord, diverged: int | None) -> Finding:
    diagnosis = _diagnosis(comparison, place, theirs, diverged)
    when = "before the first step" if place.step == 0 else f"after step {place.step}"
    how = f" (read as {theirs.aggregation} of the replicas)" if is_read_on_demand(theirs) else ""
    message = f"{place.variable.name}{how} differs from one device {when}"
    finding = finding_at(CHECK, place, message, diagnosis.cause, diagnosis if diagnosis.evidence else None)
    return replace(finding, owner=owner_of(comparison.distributed, theirs))


def _diagnosis(comparison: Comparison, place: Place, theirs: VariableRecord, diverged: int | None) -> Diagnosis:
    reference, distributed = comparison.records
    step = place.step
    if step == 0:
        return Diagnosis("initial-weights-differ", "")
    copies = copies_of(distributed, theirs, step)
    # Copies that differ were not aggregated, for whatever reason they differ.
    if not is_read_on_demand(theirs) and differ(copies):
        diagnosis = of_copies(comparison, place, theirs, copies)
        return replace(diagnosis, cause=SCALE, fix=None) if is_loss_scale(distributed, theirs) else diagnosis
    follows = of_unequal_parts(comparison, place, theirs)
    if follows is not None:
        return follows
    # The record holds no activations. So statistics of the replica's own examples can be suspected but not recomputed.
    plain = [
        layer for rank in distributed.ranks[:1] for layer in rank.layers if layer.settings.get("synchronized") is False
    ]
    layer = next((layer.name for layer in plain if layer.name in theirs.name.split("/")), None)
    if layer is not None:
        evidence = f"consistent with it: {layer} is not synchronized"
        return Diagnosis("per-replica-normalization", evidence, grounds=Grounds.PATTERN)
    # One device adds 1 in each step. With any other growth it counts something else, for example replicas.
    desired, before = (reference.value(place.variable.index, at) for at in (step, step - 1))
    if desired is not None and before is not None and desired.dtype.kind in "iu" and np.all(desired - before == 1):
        counted = f"it counts steps, but grows by {_growth(distributed, theirs, step)} per step instead of 1"
        fix = None if _of_an_optimizer(distributed, theirs) else fix_of(SCALED)
        return Diagnosis("iteration-count-wrong", counted, grounds=Grounds.RECOMPUTED, fix=fix)
    reduced = of_a_reduction(comparison, place, theirs)
    if reduced is not None:
        return reduced
    parts = {} if is_read_on_demand(theirs) else comparison.tolerance.parts_at(step)
    for replica in sorted(parts):
        alone = parts[replica].value(place.variable.index, step)
        if alone is not None and copies and difference(copies[0], alone).error <= place.bound.value:
            evidence = f"it has the value that only the examples of replica {replica} give"
            return replace(
                unexplained(comparison, place, theirs),
                cause=NOT_AGGREGATED,
                evidence=evidence,
                grounds=Grounds.RECOMPUTED,
            )
    if _of_an_optimizer(distributed, theirs):
        return Diagnosis("optimizer-state-mismatch", "")
    if diverged is not None and diverged <= step:
        # The state may only follow the weights, so its declaration is no evidence.
        return of_weights(comparison, place, theirs)
    return unexplained(comparison, place, theirs)


def _of_an_optimizer(record: TrainingRecord, variable: VariableRecord) -> bool:
    """Return whether a state belongs to an optimizer.

    Keras 3 prefixes an optimizer's variables with its name. Variables that are no slot of a weight count as state.
    """
    owners = {counter.name.split("/")[0] for counter in of_kind(record, VariableKind.ITERATIONS) if "/" in counter.name}
    return variable.name.split("/")[0] in owners


def _growth(record: TrainingRecord, variable: VariableRecord, step: int) -> str:
    now, before = (readings(record, variable, at)[0][2] for at in (step, step - 1))
    return f"{float(np.max(now.astype(np.float64) - before.astype(np.float64))):g}"


def _first_of_each_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Keep the earliest finding of each cause and owner. Its message gives the number of the other findings."""
    kept: dict[tuple[str | None, bool, bool, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda one: one.step or 0):
        # A cause that was recomputed for one variable is not proven for another one.
        kept.setdefault((finding.cause, finding.exact, finding.follows, finding.owner), []).append(finding)
    return [_joined(group) for group in kept.values()]


def _joined(group: Sequence[Finding]) -> Finding:
    first, *others = group
    if not others:
        return first
    names = tuple(finding.variable or "" for finding in others)
    return replace(first, message=f"{first.message} (with {len(others)} other variable(s))", others=names)
