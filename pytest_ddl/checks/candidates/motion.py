"""Variables that stand still, or move though they are frozen; updates that the optimizer itself made wrong."""

from __future__ import annotations

import numpy as np

from pytest_ddl.checks.arrays import difference, magnitude
from pytest_ddl.checks.candidates.shared import total_of
from pytest_ddl.checks.case import Case, Fit, reproduces
from pytest_ddl.checks.effective import rate_of
from pytest_ddl.records import GradientStage


def standing_still(case: Case) -> Fit | None:
    """Some variables do not move at all, the others as on one device."""
    still = [m for m in case.weights if magnitude(m.ours) > m.slack and not any(np.any(theirs) for theirs in m.theirs)]
    if not still:
        return None
    names = ", ".join(motion.variable.name for motion in still[:3])
    told = f"the change of {names} is exactly 0 on every replica"
    for source in case.sources:
        sizes = [
            magnitude(part[i])
            for m in still
            if (i := m.variable.index) is not None
            for part in source.parts
            if i in part
        ]
        if sizes:
            told += f", and the {source} the replicas reach {max(sizes):.4g}"
            break
    return Fit("variable-did-not-move", told)


def frozen_moved(case: Case) -> Fit | None:
    """A frozen variable follows the optimizer, which one device does not let it."""
    moved = [m for m in case.frozen if not np.any(m.ours) and any(np.any(theirs) for theirs in m.theirs)]
    if not moved:
        return None
    names = ", ".join(motion.variable.name for motion in moved[:3])
    return Fit("frozen-variable-moved", f"{names} stands still on one device")


def another_rate(case: Case) -> Fit | None:
    """The learning rate differs, and the gradients that the updates amount to do not."""
    ours, theirs = rate_of(case.reference, case.step), rate_of(case.distributed, case.step)
    if not ours or not theirs or ours == theirs:
        return None
    factor = theirs / ours
    if not reproduces(case.weights, lambda m: factor * m.ours, factor):
        return None
    return Fit(
        "learning-rate-differs",
        f"the learning rate is {theirs:.6g}, on one device {ours:.6g}, and {factor:.4g} x the single-device update "
        "reproduces the change",
    )


def optimizer_itself(case: Case) -> Fit | None:
    """What the replicas handed to the optimizer adds up to the right gradient, and what it made of it is wrong."""
    source = next((s for s in case.sources if s.stage is GradientStage.APPLIED), None)
    if source is None or not source.own or not case.in_gradient_units:
        return None
    summed = total_of(source)
    close = case.close(case.replicas)
    if set(summed) != set(source.own) or not all(close(i, summed[i], own) for i, own in source.own.items()):
        return None
    # The update is read back as the right gradient too: then the error is in the optimizer's own state.
    pulls = [m for m in case.pulls if m.variable.index in source.own]
    right = all(difference(theirs, m.ours).error <= m.slack for m in pulls for theirs in m.theirs)
    wrong = [m for m in case.slots if any(difference(theirs, m.ours).error > m.slack for theirs in m.theirs)]
    if not pulls or not (right or wrong) or any(m.components_differ for m in case.effective):
        return None
    where = f" ({wrong[0].variable.name})" if wrong else ""
    return Fit(
        "optimizer-state-mismatch",
        f"the {source} the replicas add up to those of one device; what the optimizer makes of them{where} does not",
        exact=right,
    )
