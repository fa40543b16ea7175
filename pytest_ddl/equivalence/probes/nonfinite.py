"""NONFINITE, run differently: plant infinities in the gradient of one replica, and change the initial loss scale."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.equivalence.checks.liveness import CHECK as LIVENESS
from pytest_ddl.equivalence.checks.nonfinite import CHECK as CHECK
from pytest_ddl.equivalence.checks.nonfinite import decided_by_keras, divides_by_scale
from pytest_ddl.equivalence.checks.registry import CHECKS
from pytest_ddl.equivalence.checks.replica_equality import CHECK as REPLICA_EQ
from pytest_ddl.equivalence.checks.run import CHECK as RUN
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.evidence.observe import of_kind, update
from pytest_ddl.equivalence.findings import Doubt, Finding, Outcome
from pytest_ddl.equivalence.known.advice import forms_of
from pytest_ddl.equivalence.outcomes import not_applicable
from pytest_ddl.equivalence.probes.repeating import CompareOnce, fails_on_one_device, timed
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.hints import Hint
from pytest_ddl.records import Array, GradientStage, TrainingRecord, VariableKind
from pytest_ddl.training.settings import GradientInjection, RunSettings

_DECIDES = ("IsFinite", "IsInf", "IsNan")
"""Operations of programs that test whether their gradients are finite."""
_ENOUGH = (RUN, LIVENESS, CHECK, REPLICA_EQ, STEP_EQ)
_ENDS = Role.RUN | Role.LIVENESS
_RUNS = 8
"""Maximum number of pairs of runs if ``checks=`` names the check. Each pair plants in two places."""


def wanted(report: Report, names: Collection[str]) -> bool:
    """Return whether the check is named, or the program claims to handle such gradients."""
    record = report.distributed
    if record.num_replicas < 2 or not _indices(record):
        return False
    ran = any(result.check == CHECK for result in report.results)
    return ran and (CHECK in names or claims(record))


def claims(record: TrainingRecord) -> bool:
    """Return whether the program scales its loss, or tests whether something is finite."""
    return any(
        any("LossScale" in optimizer.type for optimizer in rank.optimizers)
        or any(variable.is_loss_scale for variable in rank.variables)
        or any(graph.operations.get(kind) for graph in rank.graphs for kind in _DECIDES)
        for rank in record.ranks
    )


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Plant infinities, and judge how both runs handle them. The first pair of runs also halves the loss scale."""
    plain, record = report, report.distributed
    plans = list(_plans(plain, record))
    for number, planted in enumerate(plans):
        halved = number == 0 and any(variable.is_loss_scale for variable in record.variables)
        changed = replace(settings, inject=planted, loss_scale_factor=0.5 if halved else 1.0)
        again = timed(plain, compare_once(changed, _ENOUGH, min(2, len(plans) - number)))
        unscaled = _unscaled(plain, again) if halved else None
        again = _judged(again, planted)
        if unscaled is not None:
            again = replace(again, findings=[unscaled, *again.findings])
        report = report.merged(again, CHECK, f"run again with {_described(planted, halved, record)}")
        result = again.result(CHECK)
        if again.findings or again.doubts or result is None or result.outcome is not Outcome.PASS:
            break
    return report


def _judged(again: Report, planted: tuple[GradientInjection, ...]) -> Report:
    """Return the report of runs with planted gradients, without findings that one device shows too."""
    refused = fails_on_one_device(again)
    result = again.result(CHECK)
    assert result is not None
    if refused is not None:
        alike = again.distributed.errors
        doubts = () if alike or not planted else (Doubt(CHECK, f"{refused}, but the run under the strategy continues"),)
        result = not_applicable(CHECK, f"the program stops at a gradient that is not finite: {refused}")
        return replace(again, results=(result,), findings=[], doubts=doubts)
    if not planted:
        why = f"not tested: Keras 3's LossScaleOptimizer decides by one replica{Hint.NAME_CHECK(CHECK)}"
        result = not_applicable(CHECK, why)
    # The finding of this check explains the differences of weights and replicas that follow from it.
    findings = [finding for finding in again.findings if finding.check == CHECK]
    if not findings:
        judged = planted and result.outcome is Outcome.PASS
        # If weights are not finite on one device either, they are no measure for those under the strategy.
        findings = [finding for finding in again.findings if judged or again.roles.have(finding, _ENDS)]
    return replace(
        again,
        results=(result,),
        findings=findings,
        doubts=tuple(d for d in again.doubts if d.check == CHECK or again.roles.have(d, _ENDS)),
    )


def _described(planted: tuple[GradientInjection, ...], halved: bool, record: TrainingRecord) -> str:
    places = [f"{record.variables[p.variable].name} on replica {p.replica} in step {p.step}" for p in planted]
    return " and ".join([*(["half the loss scale"] if halved else []), *(f"inf in {place}" for place in places)])


def _indices(record: TrainingRecord) -> list[int]:
    """Return the trainable variables for which the tape gave a gradient on some replica."""
    indices = {
        index
        for rank in record.ranks
        for step in rank.steps
        for gradient in step.gradients
        if gradient.stage is GradientStage.COMPUTED
        for index, value in gradient.values.items()
        if value is not None and value.dtype.kind == "f" and record.variables[index].kind is VariableKind.TRAINABLE
    }
    return sorted(indices)


def _plans(report: Report, record: TrainingRecord) -> Iterator[tuple[GradientInjection, ...]]:
    """Yield the infinities for each run: the first variable on the last replica, the last one on the first replica.

    All other places follow if the caller asked only for this check. If there are more than three steps, the first two
    stay unchanged, because they show whether the loss scale works as declared.
    """
    steps = record.num_steps
    chosen = (3, 4) if steps > 3 else (steps,)
    replicas, indices = range(record.num_replicas), _indices(record)
    places = [(indices[0], replicas[-1]), (indices[-1], 0)][: len(chosen)]
    checks = {result.check for result in report.results}
    if checks <= {RUN, CHECK}:
        places += [place for place in ((i, r) for i in indices for r in replicas) if place not in places]
    elif decided_by_keras(record) and checks >= {check.name for check in CHECKS}:
        # Planting on one replica would judge Keras, and several workers would wait for each other. With fewer checks,
        # the caller named this one.
        places = []
    for first in range(0, min(max(len(places), 1), _RUNS * len(chosen)), len(chosen)):
        taken = zip(places[first : first + len(chosen)], chosen, strict=False)
        yield tuple(GradientInjection(step, replica, index, float("inf")) for (index, replica), step in taken)


def _unscaled(plain: Report, again: Report) -> Finding | None:
    """Find a gradient that is divided by the loss scale although the loss does not depend on the scale.

    With half the scale from the start, the tape's gradient must be half as large, and the update the same. The second
    step is compared, because a scale that is created in the first step is not yet the variable's value there.
    """
    ours, theirs = plain.reference, again.reference
    if min(ours.num_steps, theirs.num_steps) < 2:
        return None
    scales = [variable for variable in ours.variables if variable.is_loss_scale]
    at_work = [
        variable
        for variable in scales
        if (whole := ours.value(variable.index, 1)) is not None
        and (half := theirs.value(variable.index, 1)) is not None
        and float(whole) == 2 * float(half)
    ]
    computed = _ratio(_gradients(ours, GradientStage.COMPUTED), _gradients(theirs, GradientStage.COMPUTED))
    if not at_work or computed != 1.0:
        return None
    divides = any(map(divides_by_scale, ours.ranks[0].optimizers))
    applied = _ratio(_gradients(ours, GradientStage.APPLIED), _gradients(theirs, GradientStage.APPLIED))
    moved = _ratio(_changes(ours), _changes(theirs))
    if not (applied == 2.0 or moved == 2.0 or (divides and applied == 1.0)):
        return None
    name = at_work[0].name
    return Finding(
        CHECK,
        f"the loss is not multiplied by {name}, but its gradient is divided by it",
        cause="gradient-unscaled-without-scale",
        step=1,
        variable=name,
        fix=CAUSES["gradient-unscaled-without-scale"].fix.of(forms_of(ours, name)),
        evidence=f"in a second run with half of {name}, the tape gives the same gradient; half of it would be right",
    )


def _gradients(record: TrainingRecord, stage: GradientStage) -> dict[tuple[int, int], Array]:
    return {
        (gradient.call, index): value
        for gradient in record.ranks[0].steps[1].gradients
        if gradient.stage is stage
        for index, value in gradient.values.items()
        if value is not None
    }


def _changes(record: TrainingRecord) -> dict[tuple[int, int], Array]:
    changes = {v.index: update(record, v.index, 2) for v in of_kind(record, VariableKind.TRAINABLE)}
    return {(0, index): change for index, change in changes.items() if change is not None}


def _ratio(whole: dict[tuple[int, int], Array], half: dict[tuple[int, int], Array]) -> float | None:
    """Return which of the factors 1, 2 and 1/2 fits every array best; ``None`` if the arrays disagree."""
    ratios = set()
    for key in whole.keys() & half.keys():
        left, right = whole[key].astype(np.float64), half[key].astype(np.float64)
        if np.any(left) and np.all(np.isfinite(left)) and np.all(np.isfinite(right)):
            errors = {factor: float(np.linalg.norm(right - factor * left)) for factor in (1.0, 2.0, 0.5)}
            ratios.add(min(errors, key=lambda factor: errors[factor]))
    return ratios.pop() if len(ratios) == 1 else None
