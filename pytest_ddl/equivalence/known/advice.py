"""Choose the fix that a program can apply: by its form, and by what else its records show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_ddl.equivalence.causes import CAUSES, fix_of
from pytest_ddl.equivalence.causes.cause import Fix, Form
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.checks.batch import CHECK as BATCH
from pytest_ddl.equivalence.checks.data_cover import CHECK as COVERAGE
from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.metric import CHECK as METRIC_EQ
from pytest_ddl.equivalence.evidence.moving_statistics import is_moving_statistic
from pytest_ddl.equivalence.findings import CheckResult, Finding, Outcome
from pytest_ddl.records import GradientStage, GradientSum, TrainingRecord, VariableKind

_LOGS = CAUSES["reported-loss-wrong"].fix
_SHARE = 1e-6
"""Relative error of a ratio that is 1 divided by the number of replicas."""


def forms_of(distributed: TrainingRecord, variable: str | None) -> tuple[Form, ...]:
    """Return what a program is, the most particular form first.

    :param variable: name of the variable that a finding is about.
    """
    return tuple(_forms(distributed, variable))


def _forms(distributed: TrainingRecord, name: str | None) -> Iterator[Form]:
    state = next((v for v in distributed.variables if v.name == name and v.kind is VariableKind.STATE), None)
    if state is not None and state.of_keras:
        yield Form.LAYER
    fitted = _fitted(distributed)
    if fitted is not None and fitted.get("train_step"):
        yield Form.TRAIN_STEP
    if fitted is not None:
        yield Form.FIT
    elif not any(rank.layers or rank.optimizers for rank in distributed.ranks):
        yield Form.MODULE
    else:
        yield Form.LOOP


def _fitted(distributed: TrainingRecord) -> Mapping[str, bool] | None:
    return next((rank.facts["fitted"] for rank in distributed.ranks if "fitted" in rank.facts), None)


def fix_for(finding: Finding, distributed: TrainingRecord) -> str | None:
    """Return the fix that the check gave a finding, else that of its cause, in the variant for what the program is."""
    fix = finding.fix or fix_of(finding.cause)
    forms = forms_of(distributed, finding.variable)
    if finding.cause == "state-not-aggregated" and is_moving_statistic(distributed, finding.variable or ""):
        return SPECIAL["moving-statistics"]
    if finding.cause == "gradient-not-aggregated" and _switches_the_sum_off(distributed):
        return SPECIAL["sum-switched-off"]
    averages = any("calls_average_loss" in rank.facts for rank in distributed.ranks)
    if averages and Form.FIT not in forms and fix is CAUSES["gradient-scaled-by-replica-count"].fix:
        return SPECIAL["average-of-a-part"]
    if finding.check in (BATCH, COVERAGE) and any("trains_on_batches" in rank.facts for rank in distributed.ranks):
        return SPECIAL["train-on-batch"]
    shown = finding.check in (LOSS_EQ, METRIC_EQ)
    divided = finding.ratio is not None and abs(finding.ratio * distributed.num_replicas - 1) <= _SHARE
    wrong = finding.cause in ("reported-loss-wrong", "metric-wrong") or (finding.check == LOSS_EQ and divided)
    if shown and wrong and Form.TRAIN_STEP in forms:
        return _LOGS.of(forms)
    return fix.of(forms) if isinstance(fix, Fix) else fix


def _switches_the_sum_off(distributed: TrainingRecord) -> bool:
    gradients = (item for rank in distributed.ranks for step in rank.steps for item in step.gradients)
    return any(item.summed is GradientSum.TAKEN for item in gradients)


def fix_of_sums(finding: Finding, results: Sequence[CheckResult], distributed: TrainingRecord) -> str | None:
    """Return a fix for gradients that are summed or divided once too often, if the reported loss is right."""
    right = any(result.check == LOSS_EQ and result.outcome is Outcome.PASS for result in results)
    small = finding.cause == "gradient-scaled-by-inverse-replica-count"
    if not right or not (small or finding.cause == "gradient-scaled-by-replica-count"):
        return None
    gradients = [item for rank in distributed.ranks for step in rank.steps for item in step.gradients]
    by_hand = bool(gradients) and all(item.stage is GradientStage.COMPUTED for item in gradients)
    aggregation = next((v.aggregation.lower() for v in distributed.variables if v.name == finding.variable), "")
    if small:
        return finding.fix or SPECIAL["assigned-mean" if by_hand and "mean" in aggregation else "divided"]
    reduces = any("all_reduce" in rank.facts.get("lines", {}) for rank in distributed.ranks)
    if by_hand:
        return SPECIAL["assigned-sum"] if "sum" in aggregation else None
    return SPECIAL["two-sums"] if reduces else None
