"""REPLICA-EQ: all components of a variable are bit-equal over replicas and workers, from step 0 on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.case import Case
from pytest_ddl.equivalence.diagnosis.diagnose import DIVERGING, diagnose
from pytest_ddl.equivalence.diagnosis.state_updates import NOT_AGGREGATED, copies_of, of_copies, skipped_on_some
from pytest_ddl.equivalence.evidence.arithmetic import not_deterministic
from pytest_ddl.equivalence.evidence.arrays import difference, same
from pytest_ddl.equivalence.evidence.bounds import Bound
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.observe import is_loss_scale, owner_of, read_locally
from pytest_ddl.equivalence.findings import CheckResult, Diagnosis, Finding
from pytest_ddl.equivalence.outcomes import failed, finding_at, inconclusive, not_applicable, passed
from pytest_ddl.hints import Hint
from pytest_ddl.records import Array, RankRecord, VariableKind, VariableRecord

CHECK = "REPLICA-EQ"

_BITWISE = Bound(0.0, "copies of one variable must be identical")


@dataclass(frozen=True)
class _Drift:
    place: Place
    across_workers: bool


def check_replica_equality(comparison: Comparison) -> CheckResult:
    """Compare the components of every variable with each other. Only the diagnosis uses the reference."""
    distributed = comparison.distributed
    watched = [variable for variable in distributed.variables if not read_locally(variable)]
    if not watched and distributed.errors:
        return inconclusive(CHECK, "the run ended before values of variables were recorded: see RUN", follows=True)
    if not watched:
        return inconclusive(CHECK, f"no variable was watched: {Hint.WATCH}", in_program=True)
    compared, findings = 0, []
    # State that is declared to differ must hide neither weights that drift later nor the state of something else. So
    # each group has its own first step.
    groups: dict[str, list[VariableRecord]] = {}
    for variable in watched:
        owner = owner_of(distributed, variable) if variable.kind is VariableKind.STATE else ""
        groups.setdefault(owner, []).append(variable)
    for owner, group in groups.items():
        for step in range(distributed.num_steps + 1):
            drifts = []
            for variable in group:
                if step == 0 and variable.since:
                    continue  # its first value was recorded after a later step
                components = list(distributed.components(variable.index, step))
                compared += max(len(components) - 1, 0)
                bound = _rounding(comparison, variable, step) if step and not_deterministic(distributed) else _BITWISE
                if drift := _drift(variable, step, components, bound):
                    drifts.append(drift)
            if drifts:
                worst = max(drifts, key=lambda drift: drift.place.difference.error)
                names = tuple(drift.place.variable.name for drift in drifts if drift is not worst)
                findings.append(replace(_finding(worst, len(drifts), comparison), owner=owner, others=names))
                break
    if findings:
        return failed(CHECK, findings)
    if compared == 0:
        return not_applicable(CHECK, "every variable has a single component")
    return passed(CHECK, f"{compared} pairs of components, steps 0 to {distributed.num_steps}")


def _rounding(comparison: Comparison, variable: VariableRecord, step: int) -> Bound:
    """Bound two copies whose sums were taken in another order. Each copy is that far from one device at most."""
    bound = comparison.tolerance.variable(variable.index, min(step, comparison.reference.num_steps))
    return replace(bound, value=2 * bound.value, origin=f"an operation is not deterministic; {bound.origin}")


def _drift(
    variable: VariableRecord, step: int, components: list[tuple[RankRecord, int, Array]], bound: Bound
) -> _Drift | None:
    if not components:
        return None
    first_rank, _first, desired = components[0]
    worst: _Drift | None = None
    for rank, replica, actual in components[1:]:
        if same(np.asarray(actual), np.asarray(desired)):
            continue
        found = difference(np.asarray(actual), np.asarray(desired))
        if found.error <= bound.value:
            continue
        if worst is None or found.error > worst.place.difference.error:
            across = rank.rank != first_rank.rank
            worst = _Drift(Place(variable, step, rank.rank, replica, found, bound), across)
    return worst


def _finding(worst: _Drift, count: int, comparison: Comparison) -> Finding:
    place = worst.place
    diagnosis: Diagnosis | None = None
    if place.step == 0:
        rate = place.variable.kind is VariableKind.LEARNING_RATE
        cause = "learning-rate-differs" if rate else "initial-weights-differ"
    elif place.variable.kind is VariableKind.STATE:
        if is_loss_scale(comparison.distributed, place.variable):
            cause = "loss-scale-not-synchronised"
        else:
            cause, diagnosis = NOT_AGGREGATED, _of_state(comparison, place)
    elif place.variable.kind is VariableKind.LEARNING_RATE:
        cause = "learning-rate-differs"
    else:
        cause = "workers-diverged" if worst.across_workers else "replicas-diverged"
        if place.step <= comparison.reference.num_steps:
            diagnosis = diagnose(Case.at(comparison, place.step))
            # Only causes that make replicas differ explain this. STEP-EQ reports errors that are the same on all
            # replicas.
            if diagnosis.cause in (*DIVERGING, "learning-rate-differs"):
                cause = diagnosis.cause
            else:
                skipped = skipped_on_some(comparison, place, place.variable)
                diagnosis = skipped and replace(skipped, cause=cause)
    copies = "workers" if worst.across_workers else "replicas"
    when = "before the first step" if place.step == 0 else f"after step {place.step}"
    message = f"{place.variable.name} is not the same on all {copies} {when}"
    if count > 1:
        message += f" (with {count - 1} other variable(s))"
    return finding_at(CHECK, place, message, cause, diagnosis)


def _of_state(comparison: Comparison, place: Place) -> Diagnosis:
    """Say how the copies of a state were made, so that the advice fits."""
    copies = copies_of(comparison.distributed, place.variable, place.step)
    return of_copies(comparison, place, place.variable, copies)
