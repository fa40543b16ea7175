"""Fixes for programs in which the usual advice cannot be applied: ``Model.fit``, and updates by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.metric import CHECK as METRIC_EQ
from pytest_ddl.equivalence.evidence.moving_statistics import is_moving_statistic
from pytest_ddl.equivalence.findings import CheckResult, Finding, Outcome
from pytest_ddl.records import GradientStage, TrainingRecord

_N = "tf.distribute.get_strategy().num_replicas_in_sync"
_TRAIN_STEP = (
    "Model.fit of Keras 3 adds up the gradients of the replicas. Divide the loss in your train_step before "
    f"tape.gradient: loss / {_N}. self.compute_loss(...) and objects of keras.losses give a loss that is "
    "already divided."
)
_LOSS_FUNCTION = (
    "Return one loss per example from the loss function of compile(), for example keras.ops.mean(..., axis=-1). Keras "
    "divides only losses per example by the number of replicas, and adds up the gradients."
)
_LOGS = (
    "self.compute_loss(...) and objects of keras.losses give a loss that is already divided by the number of replicas. "
    f"Multiply it for the metric: update_state(loss * {_N}). "
    "Return {metric.name: metric.result() for metric in self.metrics}."
)
_STATISTICS = (
    "Use keras.layers.BatchNormalization(synchronized=True). Without it, Keras 3 gives every replica moving statistics "
    "of its own, never combines them, and saves those of the first replica."
)
_SHARE = 1e-6
"""Relative error of a ratio that is 1 divided by the number of replicas."""


_TWO_SUMS = (
    "The reported loss is right (LOSS-EQ passes), so look at the gradients: get_replica_context().all_reduce adds them "
    "up, and the optimizer adds them up once more. Divide what all_reduce returns by {n}, or leave all_reduce out."
)


_ASSIGNED_MEAN = (
    "The reported loss is right (LOSS-EQ passes), and aggregation=MEAN averages what the replicas assign. Add the "
    "gradients up first: get_replica_context().all_reduce('sum', gradients). If each replica calls assign_sub or "
    "assign_add with its own update, aggregation=tf.VariableAggregation.SUM does the same."
)
_ASSIGNED_SUM = (
    "The reported loss is right (LOSS-EQ passes), and aggregation=SUM adds up what the replicas assign. If the "
    "gradients are all-reduced before, declare aggregation=tf.VariableAggregation.MEAN, or assign each "
    "replica's own update."
)
_DIVIDED = (
    "The reported loss is right (LOSS-EQ passes), so look at the gradients: add them up with all_reduce('sum', ...) "
    "and not with 'mean', and look for a division between the loss in the tape and the update."
)


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
        return _ASSIGNED_MEAN if by_hand and "mean" in aggregation else _DIVIDED
    reduces = any("all_reduce" in rank.facts.get("lines", {}) for rank in distributed.ranks)
    if by_hand:
        return _ASSIGNED_SUM if "sum" in aggregation else None
    return _TWO_SUMS.format(n=_N) if reduces else None


def fix_in_keras(finding: Finding, distributed: TrainingRecord) -> str | None:
    """Return a fix that a program of Keras 3 can apply, or ``None`` if the usual one of the cause fits."""
    if finding.cause == "state-not-aggregated" and is_moving_statistic(distributed, finding.variable or ""):
        return _STATISTICS
    fitted: Mapping[str, bool] = next(
        (rank.facts["fitted"] for rank in distributed.ranks if "fitted" in rank.facts), {}
    )
    if finding.cause == "gradient-scaled-by-replica-count":
        if fitted.get("train_step"):
            return _TRAIN_STEP
        return _LOSS_FUNCTION if fitted.get("loss_function") else None
    shown = finding.check in (LOSS_EQ, METRIC_EQ)
    divided = finding.ratio is not None and abs(finding.ratio * distributed.num_replicas - 1) <= _SHARE
    wrong = finding.cause in ("reported-loss-wrong", "metric-wrong") or (finding.check == LOSS_EQ and divided)
    return _LOGS if shown and wrong and fitted.get("train_step") else None
