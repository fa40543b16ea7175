"""Recognize metrics of Keras 3 under central storage, whose replicas share one state that each update sums again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.checks.metric import CHECK as METRIC_EQ
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.metric_state import Pair, combined, grown, growth, means, pairs
from pytest_ddl.equivalence.evidence.observe import shared_steps
from pytest_ddl.equivalence.evidence.results import Returned, returned
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.known.shown_metrics import shown
from pytest_ddl.records import TrainingRecord

Number = TypeVar("Number")
_Shown = tuple[str, tuple[Float, str]]
"""Name of a metric, a number that it may show, and the type in which it computes this number."""
_FLOATING = ("float64", "float32")
"""Types in which metrics compute what they show. Those with whole numbers as state compute it in float32."""
_CLOSE = {"float64": 1e-9, "float32": 1e-3, "int64": 0.0, "int32": 0.0}
"""Dtype -> relative error of a state that was multiplied in every step. A defect changes it by much more."""


def is_summed_again(finding: Finding, comparison: Comparison) -> bool:
    """Return whether all state of metrics grows as if it was summed again, and gives the value that was found.

    An evaluation is recomputed from the metrics of one device after each of its batches.

    From the first step on in which weights differ, metrics differ because of the weights too. So only the steps before
    that one count, and a difference that is found later is not recognized.
    """
    reference, distributed = comparison.records
    if finding.check not in (LOSS_EQ, METRIC_EQ) or distributed.num_replicas < 2:
        return False
    evaluated = _of_evaluations(finding, distributed)
    if evaluated:
        given = list(_shown_by_evaluations(reference, distributed.num_replicas))
        among_these = numbers_of(given, finding.variable or "")
        return all(any(_is_close(np.asarray(value), *one) for one in among_these) for value in evaluated)
    if not finding.step:
        return False
    watched = pairs(reference, distributed)
    wrong = comparison.differences().step
    last = shared_steps(reference, distributed) if wrong is None else wrong - 1
    if finding.step > last:
        return False
    steps = range(1, last + 1)
    metrics: list[tuple[Pair, ...]] = [(mean.total, mean.count) for mean in means(reference, distributed)]
    metrics += [(pair,) for pair in watched if not any(pair in members for members in metrics)]
    if not all(_grows(members, reference, distributed, steps) for members in metrics):
        return False
    if finding.variable in {pair.theirs.name for pair in watched}:
        return True
    name = "loss" if finding.check == LOSS_EQ else finding.variable or ""
    possible = {step: numbers_of(_shown_by_state(reference, distributed, step), name) for step in steps}
    every = [mean for found in possible.values() for mean in found]
    numbers = [
        (value, possible[step] if step is not None else every)
        for step, value in _shown(finding, distributed)
        if (step is None and wrong is None) or step in possible
    ]
    return bool(numbers) and all(any(_is_close(np.asarray(v), *one) for one in among) for v, among in numbers)


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


def _shown(finding: Finding, record: TrainingRecord) -> Iterator[tuple[int | None, float]]:
    """Yield ``(step, number)`` that fit shows under the name of a finding, in its step and in all later ones.

    The step of a number in the history of fit is not known.
    """
    name = finding.variable or ""
    for rank in record.ranks:
        for step in rank.steps[(finding.step or 1) - 1 :]:
            value = step.loss if finding.check == LOSS_EQ else step.values.get(name)
            if value is not None:
                yield step.index, value
        for result in returned(rank).values():
            if finding.check == METRIC_EQ and result.name == name and result.kind == "fit":
                yield from ((None, value) for value in np.ravel(result.value).tolist())


def _of_evaluations(finding: Finding, record: TrainingRecord) -> list[float]:
    """Return the numbers that evaluations gave under the name of a finding; empty for anything else."""
    if finding.check != METRIC_EQ:
        return []
    results = [result for rank in record.ranks for result in returned(rank).values() if result.name == finding.variable]
    return [float(value) for result in results if _is_of_evaluation(result) for value in np.ravel(result.value)]


def _is_of_evaluation(result: Returned) -> bool:
    return result.kind == "evaluate" or (result.kind == "fit" and result.name.split("/")[-1].startswith("val_"))


def numbers_of(found: Iterable[tuple[str, Number]], shown_as: str) -> list[Number]:
    """Return the numbers of the metric that is shown under a name; of all metrics, if none has this name.

    A metric with many thresholds may show hundreds of numbers, and one of them is soon near a wrong number of another
    metric. ``val_`` stands before the names of a validation, and the name of an output before that of its metric.

    :param found: name of a metric, and a number that it may show.
    """
    name, found = shown_as.rpartition("/")[2].removeprefix("val_"), list(found)
    own = [number for metric, number in found if metric and (name == metric or name.endswith(f"_{metric}"))]
    return own or [number for _metric, number in found]


def _shown_by_evaluations(reference: TrainingRecord, replicas: int) -> Iterator[_Shown]:
    """Yield the numbers that evaluations give if every batch sums the state of metrics again."""
    for rank in reference.ranks:
        for names, states in rank.facts.get("evaluated", ()):
            histories = [[np.zeros_like(values[0]), *values] for values in zip(*states, strict=True)]
            yield from _shown_by(
                (name, values[-1].dtype.name, grown(values, replicas))
                for name, values in zip(names, histories, strict=True)
            )


def _shown_by_state(reference: TrainingRecord, distributed: TrainingRecord, step: int) -> Iterator[_Shown]:
    """Yield what metrics show after a step if their state is the predicted one."""
    return _shown_by(
        (pair.theirs.name, pair.theirs.dtype, growth(reference, pair.ours.index, step, distributed.num_replicas))
        for pair in pairs(reference, distributed)
    )


def _shown_by(found: Iterable[tuple[str, str, Float | None]]) -> Iterator[_Shown]:
    """Yield what metrics show, from the name, the type and the value of each state, in the order of the metrics."""
    metrics: list[tuple[str, str, dict[str, Float]]] = []
    for path, dtype, value in found:
        metric, _, name = path.rpartition("/")
        # Several metrics may have one name.
        if not metrics or metrics[-1][0] != metric or name in metrics[-1][2]:
            metrics.append((metric, dtype if dtype in _FLOATING else "float32", {}))
        if value is not None:
            metrics[-1][2][name] = value
    for path, dtype, states in metrics:
        yield from ((path.rpartition("/")[2], (value, dtype)) for value in shown(states))


def _is_close(actual: Float | None, predicted: Float | None, dtype: str) -> bool:
    if actual is None or predicted is None or actual.shape != predicted.shape or dtype not in _CLOSE:
        return False
    return all_finite(actual) and bool(np.all(np.abs(actual - predicted) <= _CLOSE[dtype] * np.abs(predicted)))
