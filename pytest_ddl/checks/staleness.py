"""Updates by gradients of older weights, recomputed from a run that holds its weights at an older step."""

from __future__ import annotations

import numpy as np

from pytest_ddl.checks.arrays import Float, all_finite, difference
from pytest_ddl.checks.causes import fix_of
from pytest_ddl.checks.effective import effective, rule_for
from pytest_ddl.checks.findings import Finding
from pytest_ddl.checks.observe import of_kind
from pytest_ddl.checks.step_equality import CHECK
from pytest_ddl.checks.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord

CAUSE = "staleness-exceeded"


def stale_update(
    reference: TrainingRecord, distributed: TrainingRecord, held: TrainingRecord, hold: int, step: int
) -> Finding | None:
    """Return a finding if the update of ``step`` is the one that one device makes with the weights of step ``hold``.

    :param held: the reference, with its weights set back to those after step ``hold`` after each later step.
    """
    if step > min(record.num_steps for record in (reference, distributed, held)):
        return None
    tolerance = Tolerance(reference)
    trainable = of_kind(reference, VariableKind.TRAINABLE)
    tells = False
    for variable in trainable:
        rule = rule_for(reference, variable, step)
        ours, theirs = effective(reference, rule, step), effective(distributed, rule, step)
        predicted = _at(held, rule.source, variable, hold, step, rule.read)
        if not ours or not theirs or predicted is None or not all(map(all_finite, (*ours, *theirs, predicted))):
            return None
        # Three runs round: this one, the reference, and the one whose weights were set back.
        slack = 4 * rule.slack(tolerance, step)
        if any(difference(value, predicted).error > slack for value in theirs):
            return None
        tells = tells or difference(predicted, ours[0]).error > 4 * slack
    if not tells:
        return None
    age = step - 1 - hold
    return Finding(
        check=CHECK,
        message=f"the update of step {step} is that of the weights {age} step(s) before",
        cause=CAUSE,
        step=step,
        variable=trainable[0].name,
        fix=fix_of(CAUSE),
        evidence=f"one device with its weights set back to those after step {hold} makes the same update in step "
        f"{step}, of all {len(trainable)} weights",
        exact=True,
    )


def _at(
    held: TrainingRecord, source: VariableRecord, variable: VariableRecord, hold: int, step: int, read: object
) -> Float | None:
    """Return the update of a weight in a step of the held run, which began with the weights after step ``hold``."""
    before = held.value(source.index, hold if source.index == variable.index else step - 1)
    after = held.value(source.index, step)
    if before is None or after is None or before.shape != after.shape or not callable(read):
        return None
    return np.asarray(read(before, after), np.float64)
