"""NONFINITE: if a replica's gradient is not finite, all replicas make the same decision as one device.

The check judges the plain run, and the run in which ``probes/nonfinite.py`` planted such gradients.
"""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.evidence.arrays import all_finite, difference, same
from pytest_ddl.equivalence.evidence.bounds import Bound
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.observe import component_updates, is_loss_scale, of_kind, read_locally
from pytest_ddl.equivalence.findings import CheckResult, Diagnosis, Finding, Grounds
from pytest_ddl.equivalence.outcomes import failed, finding_at, not_applicable, not_observed, passed
from pytest_ddl.hints import Hint
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import GradientStage, OptimizerRecord, TrainingRecord, VariableKind, VariableRecord

CHECK = "NONFINITE"
UPDATED = "updated"
NAMED = Hint.ONLY_CHECK(CHECK)

_OF_KERAS = (
    "Keras 3's LossScaleOptimizer looks only at the gradients of the first replica of each process, before they are "
    "added up"
)
_ALIKE = Bound(0.0, "replicas must decide alike")
_EXACT = Bound(0.0, "a loss scale changes by exact factors")


def check_nonfinite(comparison: Comparison) -> CheckResult:
    """Judge the steps in which the gradients of a replica and of one device are not finite."""
    reference, distributed = comparison.records
    if distributed.num_replicas < 2:
        return not_applicable(CHECK, "there is one replica")
    if not any(step.gradients for rank in distributed.ranks for step in rank.steps):
        return not_applicable(CHECK, not_observed(distributed, "gradients were", NoteKind.GRADIENTS))
    judged: list[int] = []
    for step in range(1, comparison.steps + 1):
        broken = not_finite(distributed, step)
        if not broken or not not_finite(reference, step):
            continue
        if not _finite_after(reference, step):
            why = f"one device also updates its weights with the gradient of step {step}, which is not finite"
            return passed(CHECK, _decided_alike(judged)) if judged else not_applicable(CHECK, why)
        if comparison.differences(first_step=step - 1, last_step=step - 1).first:
            break  # the runs already differ before this step, so it decides nothing
        finding = _weights(comparison, step, broken) or _scales(reference, distributed, step)
        if finding is not None:
            return failed(CHECK, [finding])
        judged.append(step)
    return passed(CHECK, _decided_alike(judged)) if judged else not_applicable(CHECK, "every gradient is finite", NAMED)


def not_finite(record: TrainingRecord, step: int) -> dict[int, list[int]]:
    """Map each replica to the indices of the variables whose computed gradient is not finite in a step."""
    by_variable: dict[int, list[int]] = {}
    for rank in record.ranks:
        for gradient in rank.steps[step - 1].gradients:
            broken = [index for index, value in gradient.values.items() if value is not None and not all_finite(value)]
            if broken and gradient.stage is GradientStage.COMPUTED:
                by_variable.setdefault(gradient.replica, []).extend(broken)
    return by_variable


def decided_by_keras(record: TrainingRecord) -> bool:
    """Return whether Keras 3's own ``LossScaleOptimizer`` decides about gradients that are not finite.

    It looks at the first replica of each process, before gradients are reduced (``_tf_apply`` in
    ``keras/src/optimizers/loss_scale_optimizer.py``, seen up to Keras 3.15.1).
    """
    return any(o.type == "LossScaleOptimizer" and divides_by_scale(o) for rank in record.ranks for o in rank.optimizers)


def divides_by_scale(optimizer: OptimizerRecord) -> bool:
    """Return whether the optimizer divides by the scale itself, as in Keras 3.

    The one of tf_keras gets gradients that are already divided.
    """
    return "dynamic_growth_steps" in optimizer.settings and "dynamic" not in optimizer.settings


def loss_scales(record: TrainingRecord) -> list[VariableRecord]:
    """Return the watched variables that are loss scales."""
    return [variable for variable in of_kind(record, VariableKind.STATE) if is_loss_scale(record, variable)]


def _decided_alike(steps: list[int]) -> str:
    numbers = ", ".join(map(str, steps))
    return f"replicas decided alike, and as one device, in step(s) {numbers} with gradients that are not finite"


def _finite_after(record: TrainingRecord, step: int) -> bool:
    return all(
        all_finite(value)
        for variable in of_kind(record, VariableKind.TRAINABLE)
        for _rank, _replica, value in record.components(variable.index, step)
    )


def _weights(comparison: Comparison, step: int, broken: dict[int, list[int]]) -> Finding | None:
    reference, distributed = comparison.records
    place = _replicas_differ(distributed, of_kind(distributed, VariableKind.TRAINABLE), step)
    if place is not None:
        what = "replicas decided differently"
    else:
        beyond = comparison.differences(first_step=step, last_step=step).first
        if not beyond:
            return None
        place = beyond[0]
        what = "all replicas updated alike, but not as one device did"
    message = (
        f"{place.variable.name} after step {step}, in which the gradient of replica {_listed(sorted(broken))} is not "
        f"finite: {what}"
    )
    deeds = [_deed(distributed, step, replica) for replica in range(distributed.num_replicas)]
    if len(set(deeds)) == 1 and deeds[0] == UPDATED:
        # Only the sum of the gradients reached the weights. It is finite, so nothing of the broken ones is in it.
        evidence = f"the update on every replica leaves out the gradient of replica {_listed(sorted(broken))}"
    else:
        evidence = "; ".join(f"replica {replica} {deed}" for replica, deed in enumerate(deeds))
    evidence += f"; one device {_deed(reference, step, 0)}"
    first = {rank.replicas[0] for rank in distributed.ranks if rank.replicas}
    if decided_by_keras(distributed) and first - broken.keys():
        return _finding(
            place, message, "non-finite-not-synchronised", f"{_OF_KERAS}; {evidence}", SPECIAL["loss-scale-of-keras"]
        )
    return _finding(place, message, "non-finite-not-synchronised", evidence)


def _scales(reference: TrainingRecord, distributed: TrainingRecord, step: int) -> Finding | None:
    scales = loss_scales(distributed)
    place = _replicas_differ(distributed, scales, step)
    what = "replicas disagree"
    if place is None:
        for variable in scales:
            before, desired = (reference.value(variable.index, at) for at in (step - 1, step))
            ours, theirs = (distributed.value(variable.index, at) for at in (step - 1, step))
            if before is None or desired is None or ours is None or theirs is None or not same(before, ours):
                continue
            if not same(theirs, desired):
                rank = distributed.ranks[0]
                place = Place(variable, step, rank.rank, rank.replicas[0], difference(theirs, desired), _EXACT)
                what = "it is not that of one device"
    if place is None:
        return None
    message = f"the loss scale {place.variable.name} after step {step}, whose gradient is not finite: {what}"
    values = [f"{float(value):g}" for _r, _c, value in distributed.components(place.variable.index, step)]
    desired = reference.value(place.variable.index, step)
    wanted = "" if desired is None else f"; on one device {float(desired):g}"
    return _finding(place, message, "loss-scale-not-synchronised", f"its components are {', '.join(values)}{wanted}")


def _replicas_differ(record: TrainingRecord, variables: list[VariableRecord], step: int) -> Place | None:
    """Find the first variable whose components differ after a step but not before it."""
    for variable in variables:
        if read_locally(variable) or _spread(record, variable, step - 1) is not None:
            continue
        place = _spread(record, variable, step)
        if place is not None:
            return place
    return None


def _spread(record: TrainingRecord, variable: VariableRecord, step: int) -> Place | None:
    first = record.value(variable.index, step)
    for rank, replica, value in record.components(variable.index, step):
        if first is not None and not same(np.asarray(value), first):
            return Place(variable, step, rank.rank, replica, difference(np.asarray(value), first), _ALIKE)
    return None


def _deed(record: TrainingRecord, step: int, replica: int) -> str:
    """Describe how a replica changed its weights in a step."""
    changes = [
        change
        for variable in of_kind(record, VariableKind.TRAINABLE)
        for _rank, owner, change in component_updates(record, variable.index, step)
        if owner == replica or not variable.distributed
    ]
    if not all(map(all_finite, changes)):
        return "updated with values that are not finite"
    return UPDATED if any(np.any(change) for change in changes) else "did not update"


def _listed(items: list[int]) -> str:
    return ", ".join(map(str, items))


def _finding(place: Place, message: str, cause: str, evidence: str, fix: str | None = None) -> Finding:
    return finding_at(CHECK, place, message, cause, Diagnosis(cause, evidence, fix=fix, grounds=Grounds.RECOMPUTED))
