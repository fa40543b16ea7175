"""A term of the loss that each replica averages over its own examples is named, beside terms that are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated_gradients import Batch, Gradient, Way, added, global_mean, judged_with_slices

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import LayerRecord


def _mean(weights: Gradient, batch: Batch, power: int) -> Gradient:
    """The gradient of a mean over the examples of the batch, with another one for each power."""
    found = []
    for x in batch.x:
        delta = np.tanh(x**power @ weights["kernel"] + weights["bias"])
        found.append({"kernel": np.outer(x**power, delta), "bias": delta, "table": np.zeros((6, 2))})
    return added(found, 1.0 / len(batch.ids))


def _penalty(weights: Gradient, _batch: Batch) -> Gradient:
    return added([weights])


def _with(*terms: Any) -> Any:
    def computed(weights: Gradient, batch: Batch) -> Gradient:
        return added([global_mean(weights, batch), *(term(weights, batch) for term in terms)])

    return computed


def whole(weights: Gradient, batch: Batch) -> Gradient:
    return _mean(weights, batch, 1)


def divided(weights: Gradient, batch: Batch) -> Gradient:
    return added([_mean(weights, batch, 2)], 1.0 / batch.replicas)


def divided_twice(weights: Gradient, batch: Batch) -> Gradient:
    return added([_mean(weights, batch, 1)], 1.0 / batch.replicas**2)


def divided_three_times(weights: Gradient, batch: Batch) -> Gradient:
    return added([_mean(weights, batch, 1)], 1.0 / batch.replicas**3)


def penalty_divided_twice(weights: Gradient, batch: Batch) -> Gradient:
    return added([weights], 1.0 / batch.replicas**2)


def found(computed: Any, replicas: int, rule: str = "SGD", **way_of: Any) -> Finding:
    way = Way(computed=computed, rule=rule, **way_of)
    return judged_with_slices(way, way, replicas, checks=["STEP-EQ"]).findings[0]


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("terms", [(whole,), (whole, divided)], ids=["alone", "beside a mean that is divided"])
def test_a_term_that_is_not_divided_is_named(terms: tuple[Any, ...], replicas: int, rule: str) -> None:
    finding = found(_with(*terms), replicas, rule)
    assert (finding.cause, finding.exact) == ("gradient-scaled-by-replica-count", True), finding
    assert finding.fix == SPECIAL["mean-term"].text or SPECIAL["mean-term"].text in str(finding.fix)


def test_a_term_beside_a_penalised_output_may_be_this_penalty() -> None:
    layers = (LayerRecord("dense", "Dense", {"activity_regularizer": "L2"}), LayerRecord("dense_1", "Dense"))
    finding = found(_with(whole, divided), 2, layers=layers)
    assert (finding.cause, finding.exact) == ("regularization-scaled-by-replica-count", True), finding
    assert finding.also == ("gradient-scaled-by-replica-count",)
    assert "dense penalises its output" in (finding.evidence or "")


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("terms", [(divided_twice,), (divided_twice, divided)], ids=["alone", "beside another"])
def test_a_term_that_is_divided_twice_is_named(terms: tuple[Any, ...], replicas: int) -> None:
    finding = found(_with(*terms), replicas)
    assert (finding.cause, finding.exact) == ("gradient-scaled-by-inverse-replica-count", True), finding
    assert f"it is {replicas} times too small" in (finding.evidence or "")
    assert SPECIAL["divided-term"].text in str(finding.fix)


def test_a_term_that_is_divided_three_times_has_its_size() -> None:
    finding = found(_with(divided_three_times), 2)
    assert finding.cause == "gradient-scaled-by-inverse-replica-count", finding
    assert "it is 4 times too small" in (finding.evidence or "")


def test_a_penalty_that_is_divided_twice_is_no_term_of_the_examples() -> None:
    assert found(_with(penalty_divided_twice), 2).fix != SPECIAL["divided-term"]


def test_a_penalty_is_no_term_of_the_examples() -> None:
    assert found(_with(_penalty, divided), 2).cause != "gradient-scaled-by-replica-count"
