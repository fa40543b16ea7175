"""MOVES: variables that one device trains move under the strategy too, and frozen variables do not move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.checks.parameter_server import reads_too_early
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, magnitude, same
from pytest_ddl.equivalence.evidence.bounds import Bound
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.effective import counted_updates, moved, rate_of
from pytest_ddl.equivalence.evidence.gradients import by_replica, calls, total
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, of_kind, shared_steps, update
from pytest_ddl.equivalence.findings import CheckResult, Finding, Reason, Unjudged
from pytest_ddl.equivalence.outcomes import failed, finding_at, inconclusive, no_steps, not_applicable, passed
from pytest_ddl.hints import Hint
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord

CHECK = "MOVES"


def check_moves(comparison: Comparison) -> CheckResult:
    """Compare on both sides which variables changed between the first and the last step."""
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    if reads_too_early(distributed):
        return not_applicable(CHECK, "closures were still running when the last step was recorded, see PS")
    steps = shared_steps(reference, distributed)
    if steps == 0:
        return no_steps(CHECK, distributed, reference)
    trainable = of_kind(reference, VariableKind.TRAINABLE)
    if not trainable:
        return not_applicable(CHECK, "no trainable variable was watched", Hint.A_MODEL())
    moving = [v for v in trainable if tolerance.moved(v.index, steps)]
    findings = [
        _finding(reference, distributed, v, steps, "variable-did-not-move", "stands still on")
        for v in moving
        if _replicas_moved(distributed, v, steps) is False
    ]
    findings += [
        _finding(reference, distributed, v, steps, "frozen-variable-moved", "is frozen and yet moved on")
        for v in of_kind(reference, VariableKind.FROZEN)
        if _replicas_moved(distributed, v, steps) and not _replicas_moved(reference, v, steps)
    ]
    findings = findings or _frozen_and_updated(reference, distributed)
    findings = findings or _without_reference(reference, distributed)
    if findings:
        return failed(CHECK, findings)
    if not moving:
        return inconclusive(CHECK, "no trainable variable moved on one device")
    recorded = [v for v in trainable if reference.value(v.index, steps) is not None]
    still = [v.name for v in recorded if v not in moving]
    idle = [v.name for v in of_kind(reference, VariableKind.ITERATIONS) if _counts_nothing(reference, v, steps)]
    not_judged = f"; not judged, because they do not move on one device: {', '.join(still[:3])}" if still else ""
    result = passed(CHECK, f"{len(moving)} of {len(trainable)} trainable variables moved{not_judged}")
    # A program may have an optimizer that it does not use. So this is not enough to doubt the result.
    why = f"because {idle[0]} does not grow in {steps} step(s)" if idle else ""
    return replace(result, unjudged=tuple(Unjudged(name, Reason.NO_UPDATE, why) for name in still)) if idle else result


def _counts_nothing(record: TrainingRecord, counter: VariableRecord, steps: int) -> bool:
    first, last = record.value(counter.index, 0), record.value(counter.index, steps)
    return first is not None and last is not None and same(first, last)


def _frozen_and_updated(reference: TrainingRecord, distributed: TrainingRecord) -> list[Finding]:
    """Find frozen weights that the program updates together with trainable ones, on one device too."""
    thawed = {index for rank in (*reference.ranks, *distributed.ranks) for index in rank.facts.get("thawed", ())}
    trainable = {variable.index for variable in of_kind(distributed, VariableKind.TRAINABLE)}
    for variable in of_kind(distributed, VariableKind.FROZEN):
        for step in range(1, distributed.num_steps + 1):
            if variable.index in thawed or not moved(distributed, variable, step):
                continue
            handed = calls(distributed, step, GradientStage.APPLIED) or calls(distributed, step, GradientStage.COMPUTED)
            together = [call for call in handed if call.values.get(variable.index) is not None]
            if any(trainable & set(call.values) for call in together):
                cause = "frozen-variable-moved"
                return [
                    Finding(
                        CHECK,
                        f"{variable.name} belongs to a layer that is not trainable, and is updated in step {step} "
                        "(on one device too)",
                        cause=cause,
                        step=step,
                        variable=variable.name,
                        evidence="its gradient is taken and applied together with those of trainable weights",
                    )
                ]
    return []


def _without_reference(reference: TrainingRecord, distributed: TrainingRecord) -> list[Finding]:
    """Find weights that have a gradient but never move, even on one device."""
    found = {variable.index: (variable, step, evidence) for variable, step, evidence in unmoved(distributed)}
    both = [found[variable.index] for variable, _step, _evidence in unmoved(reference) if variable.index in found]
    if not both:
        return []
    variable, step, evidence = both[0]
    more = f" (with {len(both) - 1} other variable(s))" if len(both) > 1 else ""
    message = f"{variable.name} has a gradient but never moves, even on one device{more}"
    cause = "variable-did-not-move"
    return [Finding(CHECK, message, cause=cause, step=step, variable=variable.name, evidence=evidence)]


def _replicas_moved(record: TrainingRecord, variable: VariableRecord, steps: int) -> bool | None:
    """Return whether any component changed in any step; ``None`` if it was not recorded twice."""
    values = [found for step in range(steps + 1) for found in record.components(variable.index, step)]
    for rank in record.ranks:
        # Closures that the program schedules by itself may all end after its last record.
        final = (rank.final or {}).get(variable.index, ()) if rank.asynchronous else ()
        values += [(rank, position, value) for position, value in zip(rank.replicas, final, strict=False)]
    seen: dict[tuple[int, int], object] = {}
    compared = False
    for rank, replica, value in values:
        before = seen.get((rank.rank, replica))
        seen[rank.rank, replica] = value
        if before is None:
            continue
        compared = True
        if not same(np.asarray(before), np.asarray(value)):
            return True
    return False if compared else None


def _finding(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    variable: VariableRecord,
    steps: int,
    cause: str,
    what: str,
) -> Finding:
    actual, desired = distributed.value(variable.index, steps), reference.value(variable.index, steps)
    assert actual is not None
    assert desired is not None
    bound = Bound(0.0, "whether a variable moves is exact")
    place = Place(variable, 1, 0, distributed.ranks[0].replicas[0], difference(actual, desired), bound)
    return finding_at(CHECK, place, f"{variable.name} {what} every replica", cause)


def unmoved(record: TrainingRecord) -> Iterator[tuple[VariableRecord, int, str]]:
    """Yield ``(variable, first step, evidence)`` of weights that should have moved in this run but never did.

    A gradient that is computed but not applied may be intended: accumulated, logged, held back as zeros, or used with a
    learning rate of 0. So a weight with a visible gradient is named only if no learning rate is known to be 0, and:

    * its gradient was handed to the optimizer and was not zero,
    * or its gradient was never handed over, and another weight of the same gradient call moved in every step,
    * or no watched weight moved at all, and the optimizer counted an update in each of these steps.
    """
    trainable = of_kind(record, VariableKind.TRAINABLE)
    steps = range(1, record.num_steps + 1)
    moving = {step: {v.index for v in trainable if moved(record, v, step)} for step in steps}
    still = [v for v in trainable if not any(v.index in indices for indices in moving.values())]
    if not still or is_asynchronous(record):
        return
    computed = {step: total(by_replica(record, step, GradientStage.COMPUTED)) for step in steps}
    applied = {step: total(by_replica(record, step, GradientStage.APPLIED)) for step in steps}
    # A program may leave out the whole update if one gradient is not finite.
    finite = [step for step in steps if all(map(all_finite, computed[step].values()))]
    for variable in still:
        visible = [step for step in finite if _large(record, variable, step, computed[step], moving[step])]
        if not visible or any(rate_of(record, step) == 0.0 for step in visible):
            continue
        size = magnitude(computed[visible[0]][variable.index])
        reached = f"its gradient reaches {size:.4g} in step {visible[0]}"
        given = [step for step in visible if np.any(applied[step].get(variable.index, np.zeros(())))]
        if given:
            yield variable, given[0], f"{reached} and was handed to the optimizer"
        elif any(variable.index in handed for handed in applied.values()):
            continue  # handed over as zeros: held back on purpose
        elif visible == finite and all(_companions(record, variable, s) & moving[s] for s in visible):
            yield variable, visible[0], f"{reached}, and others of the same gradient call move in every step"
        elif not any(moving.values()) and all(counted_updates(record, step) for step in visible):
            yield variable, visible[0], f"{reached}, the optimizer counts an update, and no watched weight moves"


def _large(
    record: TrainingRecord, variable: VariableRecord, step: int, gradients: dict[int, Float], moving: set[int]
) -> bool:
    """Return whether a gradient is finite, and so large that its weight must change visibly.

    The weight is assumed to move as far per unit of gradient as the other weights do.
    """
    gradient = gradients.get(variable.index)
    if gradient is None or not all_finite(gradient) or not np.any(gradient):
        return False
    rates = [
        magnitude(update(record, index, step)) / size
        for index in moving
        if index in gradients and (size := magnitude(gradients[index])) > 0
    ]
    spacing = 8 * unit_roundoff(variable.dtype) * magnitude(record.value(variable.index, step))
    return min(rates, default=rate_of(record, step) or 1.0) * magnitude(gradient) > spacing


def _companions(record: TrainingRecord, variable: VariableRecord, step: int) -> set[int]:
    """Return the weights whose gradients came from the same calls."""
    computed = calls(record, step, GradientStage.COMPUTED)
    return {index for call in computed if variable.index in call.values for index in call.values} - {variable.index}
