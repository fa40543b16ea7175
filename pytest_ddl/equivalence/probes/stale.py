"""STEP-EQ, run differently: hold the weights of one device at an older step, to find gradients of older weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.checks.step_equality import CHECK
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference
from pytest_ddl.equivalence.evidence.effective import effective, rule_for
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.probes.repeating import CompareOnce
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord
from pytest_ddl.training.settings import RunSettings

CAUSE = "staleness-exceeded"
_VAGUE = (None, "reported-loss-wrong", "optimizer-state-mismatch")


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether weights agree for a step, then differ alike on all replicas, and no known cause explains it."""
    step = _step(report)
    if step is None or step < 2:
        return False
    first = all((finding.step or 0) >= step for finding in report.findings)
    return first and all(f.cause in _VAGUE and report.roles.have(f, Role.VALUES) for f in report.findings)


def _step(report: Report) -> int | None:
    return next((f.step for f in report.findings if f.check == CHECK and f.cause is None), None)


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run again with weights held one step before the last right one, and with the initial weights."""
    step, reference, distributed = _step(report), report.reference, report.distributed
    if step is None:
        return report
    for hold in dict.fromkeys((step - 2, 0)):
        again = compare_once(replace(settings, precision=reference.precision, hold=hold, steps=step), (CHECK,))
        result = stale_update(reference, distributed, again.reference, hold, step)
        if result is None:
            continue
        rest = [f for f in report.findings if not report.roles.have(f, Role.VALUES) or (f.step or 0) < step]
        results = tuple(replace(r, findings=(result,)) if r.check == CHECK else r for r in report.results)
        unused = dict(report.unused_expectations)
        why = unused.pop(result.cause or "", None)
        return replace(
            report,
            findings=rest if why is not None else [result, *rest],
            expected=report.expected if why is None else (*report.expected, (result, why)),
            unused_expectations=unused,
            results=results,
        )
    return report


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
    differs = False
    for variable in trainable:
        rule = rule_for(reference, variable, step)
        ours, theirs = effective(reference, rule, step), effective(distributed, rule, step)
        predicted = _update_of(held, rule.source, variable, hold, step, rule.read)
        if not ours or not theirs or predicted is None or not all(map(all_finite, (*ours, *theirs, predicted))):
            return None
        # Three runs contribute rounding: this one, the reference, and the one whose weights were set back.
        slack = 4 * rule.slack(tolerance, step)
        if any(difference(value, predicted).error > slack for value in theirs):
            return None
        differs = differs or difference(predicted, ours[0]).error > 4 * slack
    if not differs:
        return None
    age = step - 1 - hold
    return Finding(
        check=CHECK,
        message=f"the update of step {step} was computed with weights that are {age} step(s) older",
        cause=CAUSE,
        step=step,
        variable=trainable[0].name,
        fix=fix_of(CAUSE),
        evidence=f"one device with its weights set back to those after step {hold} makes the same update in step "
        f"{step}, of all {len(trainable)} weights",
        exact=True,
    )


def _update_of(
    held: TrainingRecord, source: VariableRecord, variable: VariableRecord, hold: int, step: int, read: object
) -> Float | None:
    """Return the update of a weight in a step of the held run, which began with the weights after step ``hold``."""
    before = held.value(source.index, hold if source.index == variable.index else step - 1)
    after = held.value(source.index, step)
    if before is None or after is None or before.shape != after.shape or not callable(read):
        return None
    return np.asarray(read(before, after), np.float64)
