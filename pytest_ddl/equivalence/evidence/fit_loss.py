"""Loss that ``Model.fit`` shows within an epoch: find out why its running mean differs from one device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.metric_state import Mean, combined, components, growth, means
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training.values import RUNNING_MEAN as RUNNING_MEAN


@dataclass(frozen=True)
class Shown:
    """Formula that gives exactly the value that fit shows."""

    text: str
    cause: str = "reported-loss-wrong"
    also: tuple[str, ...] = ()
    approximation: bool = False
    """True if the metric behind it is right, and so is the mean that fit shows at the end of the epoch."""
    of_other_losses: bool = False
    """True if fit shows the mean of all that its metric has counted, so that the losses themselves differ."""


def is_running_mean(record: TrainingRecord, step: int) -> bool:
    """Return whether the loss of a step is the mean over the epoch so far."""
    return any(RUNNING_MEAN in rank.steps[step - 1].values for rank in record.ranks)


def shown_by_fit(
    reference: TrainingRecord, distributed: TrainingRecord, step: int, actual: float, slack: float
) -> Shown | None:
    """Return the formula that gives fit's loss from the state of its metric; ``None`` if none fits."""
    desired = reference.ranks[0].steps[step - 1].loss
    for mean in means(reference, distributed):
        ours = _ratio(reference.value(mean.total.ours.index, step), reference.value(mean.count.ours.index, step))
        if ours is None or desired is None or abs(ours - desired) > slack:
            continue  # the mean of something else
        shown = _formula(reference, distributed, mean, step, actual, slack)
        if shown is not None:
            return shown
    return None


def _formula(
    reference: TrainingRecord, distributed: TrainingRecord, mean: Mean, step: int, actual: float, slack: float
) -> Shown | None:
    number = distributed.num_replicas
    totals, counts = (components(distributed, pair.theirs, step) for pair in (mean.total, mean.count))
    parts = [_ratio(total, count) for total, count in zip(totals, counts, strict=False)]
    own = [part for part in parts if part is not None]
    whole = _ratio(combined(distributed, mean.total.theirs, step), combined(distributed, mean.count.theirs, step))
    desired = reference.ranks[0].steps[step - 1].loss
    right = whole is not None and desired is not None and abs(whole - desired) <= slack
    if len(own) > 1 and len(own) == len(parts) and _fits(sum(own) / len(own), actual, slack):
        text = "it is the mean of the replicas' running means, which ignores their numbers of examples"
        shows_all = whole is not None and _fits(whole, actual, slack)
        return Shown(text, "mean-of-replica-means", approximation=right, of_other_losses=shows_all and not right)
    if len(own) > 1 and _fits(sum(own), actual, slack * number):
        text = f"it is the sum of the {number} replicas' running means; the metric's own state is right"
        return Shown(text, also=("metric-wrong",), approximation=right)
    for replica, part in enumerate(own if len(own) > 1 else ()):
        if _fits(part, actual, slack):
            return Shown(f"it is the running mean of only replica {replica}", also=("metric-wrong",))
    total, count = (growth(reference, pair.ours.index, step, number) for pair in (mean.total, mean.count))
    summed = _ratio(total, count)
    if number > 1 and summed is not None and _fits(summed, actual, slack * number):
        text = f"every update first multiplies the running mean by {number}: its state, which the replicas "
        return Shown(text + "share, is summed over them again each time", also=("metric-wrong",))
    return None


def _fits(predicted: float, actual: float, slack: float) -> bool:
    return math.isfinite(predicted) and abs(predicted - actual) <= slack


def _ratio(total: object, count: object) -> float | None:
    if total is None or count is None:
        return None
    above, below = np.asarray(total, np.float64), np.asarray(count, np.float64)
    return float(above / below) if above.shape == below.shape == () and below != 0 else None
