"""Recognize metrics of Keras 3 under central storage, whose replicas share one state that each update sums again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.metric import CHECK as METRIC_EQ
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.metric_state import Pair, combined, growth, means, pairs
from pytest_ddl.equivalence.evidence.observe import shared_steps
from pytest_ddl.equivalence.evidence.results import returned
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import TrainingRecord

_CLOSE = {"float64": 1e-9, "float32": 1e-3, "int64": 0.0, "int32": 0.0}
"""Dtype -> relative error of a state that was multiplied in every step. A defect changes it by much more."""
_Key = tuple[object, ...]
"""Step of a number, or the call that returned it."""


def is_summed_again(finding: Finding, comparison: Comparison) -> bool:
    """Return whether the state of metrics grows as if it was summed again, or a number is what they then show.

    A run on one device shows this number, whatever a metric computes. Its metrics are multiplied before each batch.

    From the first step on in which weights differ, metrics differ because of the weights too. So only the steps before
    that one count, and a difference that is found later is not recognized.
    """
    reference, distributed = comparison.records
    if finding.check not in (LOSS_EQ, METRIC_EQ) or distributed.num_replicas < 2:
        return False
    wrong = comparison.differences().step
    last = shared_steps(reference, distributed) if wrong is None else wrong - 1
    if (finding.step or 0) > last:
        return False
    watched = pairs(reference, distributed)
    if finding.step and finding.variable in {pair.theirs.name for pair in watched}:
        metrics: list[tuple[Pair, ...]] = [(mean.total, mean.count) for mean in means(reference, distributed)]
        metrics += [(pair,) for pair in watched if not any(pair in members for members in metrics)]
        return all(_grows(members, reference, distributed, range(1, last + 1)) for members in metrics)
    shared = comparison.tolerance.shared
    if shared is None:
        return False
    predicted = dict(_shown(finding, shared, last))
    shown = dict(_shown(finding, distributed, last))
    double = all(pair.theirs.dtype == "float64" for pair in watched if pair.theirs.dtype.startswith("float"))
    dtype = "float64" if watched and double else "float32"
    return bool(shown) and all(_is_close(value, predicted.get(key), dtype) for key, value in shown.items())


def _grows(
    members: Sequence[Pair], reference: TrainingRecord, distributed: TrainingRecord, steps: Sequence[int]
) -> bool:
    """Return whether the state of one metric was summed again in every step, or in none.

    The replicas do not share the state of a metric that is made outside of ``strategy.scope()``, which is right. The
    losses of several outputs count one for each replica, not for each example, so all of their state is N times larger.
    """
    replicas = distributed.num_replicas

    def fits(predict: Callable[[Pair, int], Float | None]) -> bool:
        pairs_at = ((pair, step) for pair in members for step in steps)
        return all(_is_close(combined(distributed, p.theirs, at), predict(p, at), p.theirs.dtype) for p, at in pairs_at)

    def again(pair: Pair, step: int) -> Float | None:
        return growth(reference, pair.ours.index, step, replicas)

    def of_each(pair: Pair, step: int) -> Float | None:
        value = again(pair, step)
        return None if value is None else replicas * value

    return fits(again) or fits(of_each) or fits(lambda pair, step: combined(reference, pair.ours, step))


def _shown(finding: Finding, record: TrainingRecord, last: int) -> Iterator[tuple[_Key, Float]]:
    """Yield each number under the name of a finding, from its step to the last one, and the results of calls."""
    name, rank = finding.variable or "", record.ranks[0]
    for step in rank.steps[max(finding.step or 1, 1) - 1 : last]:
        value = step.loss if finding.check == LOSS_EQ else step.values.get(name)
        if value is not None:
            yield (step.index,), np.asarray(value)
    for key, result in returned(rank).items():
        if finding.check == METRIC_EQ and result.name == name and result.step <= last:
            yield key, np.asarray(result.value)


def _is_close(actual: Float | None, predicted: Float | None, dtype: str) -> bool:
    if actual is None or predicted is None or actual.shape != predicted.shape or dtype not in _CLOSE:
        return False
    return all_finite(actual) and bool(np.all(np.abs(actual - predicted) <= _CLOSE[dtype] * np.abs(predicted)))
