"""Examples that a replica leaves out or counts several times, and updates by the gradient of another step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import (
    Batch,
    Gradient,
    Way,
    added,
    example_gradients,
    global_mean,
    judged_with_slices,
    local_mean,
    masked,
    masked_locally,
    scaled,
)

from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.equivalence.verdict.report import Report

NUMERIC = ["STEP-EQ", "REPLICA-EQ"]
RULES: list[dict[str, Any]] = [{}, {"rule": "Adam"}, {"momentum": 0.9}]
NAMES = ["sgd", "adam", "momentum"]


def _on_the_second(counts: Callable[[int], list[int]], divisor: Callable[[Batch, list[int]], float]) -> Any:
    """A replica function that counts the examples of replica 1 as often as ``counts`` says for their number."""

    def computed(weights: Gradient, batch: Batch) -> Gradient:
        first = batch.ids[0] % batch.total == 0
        if batch.replicas == 1 or first:
            return global_mean(weights, batch)
        times = counts(len(batch.ids))
        each = [scaled(g, n) for g, n in zip(example_gradients(weights, batch), times, strict=True)]
        return added(each, 1.0 / divisor(batch, times))

    return computed


def _of_the_global_batch(batch: Batch, _times: list[int]) -> float:
    return batch.total


def _of_what_is_left(batch: Batch, times: list[int]) -> float:
    return 2.0 * sum(times)


def _judged(computed: Any, **way: Any) -> Report:
    return judged_with_slices(Way(**way), Way(computed=computed, **way), 2, checks=NUMERIC)


@pytest.mark.parametrize("divisor", [_of_the_global_batch, _of_what_is_left])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_example_that_a_replica_leaves_out_is_named(rule: dict[str, Any], divisor: Any) -> None:
    report = _judged(_on_the_second(lambda size: [1] * (size - 1) + [0], divisor), **rule)
    first = report.findings[0]
    assert first.cause == "examples-dropped"
    assert first.grounds is Grounds.RECOMPUTED
    assert "of replica 1 only if example 11 is left out" in str(first.evidence)
    assert "replica function" in str(first.fix)
    assert "shard" not in str(first.fix).lower()
    assert len(report.findings) == 1


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_example_in_the_place_of_another_is_named(rule: dict[str, Any]) -> None:
    computed = _on_the_second(lambda size: [2, *[1] * (size - 2), 0], _of_the_global_batch)
    first = _judged(computed, **rule).findings[0]
    assert first.cause == "examples-duplicated"
    assert "examples-dropped" in first.also
    assert "example 6 counts twice, example 11 is left out" in str(first.evidence)


def test_other_labels_are_no_other_counts() -> None:
    def computed(weights: Gradient, batch: Batch) -> Gradient:
        if batch.replicas == 2 and batch.ids[0] % batch.total:
            batch = replace(batch, y=np.roll(batch.y, 1, axis=0))
        return global_mean(weights, batch)

    assert not {f.cause for f in _judged(computed).findings} & {"examples-dropped", "examples-duplicated"}


def test_weights_of_examples_that_are_no_whole_numbers_are_no_counts() -> None:
    def computed(weights: Gradient, batch: Batch) -> Gradient:
        if batch.replicas == 1 or not batch.ids[0] % batch.total:
            return global_mean(weights, batch)
        each = example_gradients(weights, batch)
        return added([scaled(g, 1 + 0.1 * i) for i, g in enumerate(each)], 1.0 / batch.total)

    assert not {f.cause for f in _judged(computed).findings} & {"examples-dropped", "examples-duplicated"}


def _delayed(parts_by_step: dict[int, Sequence[Gradient]], delay: int) -> Any:
    def handed(parts: Sequence[Gradient], step: int) -> Sequence[Gradient]:
        parts_by_step[step] = parts
        return parts_by_step[max(step - delay, 1)]

    return handed


@pytest.mark.parametrize("sizes", [(12, 12, 12), (12, 5, 12)], ids=["even", "uneven"])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_gradient_of_the_step_before_is_named(rule: dict[str, Any], sizes: Any) -> None:
    wrong = Way(handed=_delayed({}, 1), sizes=sizes, **rule)
    first = judged_with_slices(Way(sizes=sizes, **rule), wrong, 2, checks=NUMERIC).findings[0]
    assert (first.cause, first.step) == ("staleness-exceeded", 2)
    assert "with the gradient that one device applies in step 1" in str(first.evidence)
    assert str(first.fix).startswith("Apply each gradient in the step that computes it")


@pytest.mark.parametrize("sizes", [(12, 12, 12), (12, 5, 12)], ids=["even", "uneven"])
@pytest.mark.parametrize("rule", RULES[1:], ids=NAMES[1:])
def test_a_step_that_only_momentum_moves_is_a_lost_update(rule: dict[str, Any], sizes: Any) -> None:
    def handed(parts: Sequence[Gradient], step: int) -> Sequence[Gradient]:
        return [scaled(part, 0.0) for part in parts] if step == 2 else parts

    first = judged_with_slices(Way(sizes=sizes, **rule), Way(handed=handed, sizes=sizes, **rule), 2, checks=NUMERIC)
    assert (first.findings[0].cause, first.findings[0].step) == ("lost-update", 2)


def test_a_replica_that_hands_over_nothing_in_a_later_step_is_named_with_momentum() -> None:
    def handed(parts: Sequence[Gradient], step: int) -> Sequence[Gradient]:
        return [parts[0], scaled(parts[1], 0.0)] if step == 2 else parts

    first = judged_with_slices(Way(momentum=0.9), Way(momentum=0.9, handed=handed), 2, checks=NUMERIC).findings[0]
    assert first.cause == "gradient-not-aggregated"
    assert "replica 1 computes a gradient and hands zeros to the optimizer" in str(first.evidence)
    assert "same on all replicas" in str(first.fix)


def test_right_gradients_on_uneven_replicas_are_no_mean_of_means() -> None:
    sizes = (12, 5, 12)

    def handed(parts: Sequence[Gradient], step: int) -> Sequence[Gradient]:
        return [scaled(part, 1.37) for part in parts] if step == 2 else parts

    report = judged_with_slices(Way(sizes=sizes), Way(sizes=sizes, handed=handed), 2, checks=NUMERIC)
    assert report.verdict == "fail"
    assert "mean-of-replica-means" not in {finding.cause for finding in (*report.findings, *report.excused)}


def test_a_divisor_of_the_replicas_own_part_is_named() -> None:
    def of_the_largest(weights: Gradient, batch: Batch) -> Gradient:
        return added(example_gradients(weights, batch), 1.0 / (batch.total * batch.valid.max()))

    report = judged_with_slices(Way(computed=of_the_largest), Way(computed=of_the_largest), 2, checks=NUMERIC)
    assert report.findings[0].cause == "masked-loss-normalised-per-replica"
    assert "one device that trains on only a replica's examples" in str(report.findings[0].evidence)


def test_a_factor_of_one_replica_is_no_divisor_of_its_part() -> None:
    def computed(weights: Gradient, batch: Batch) -> Gradient:
        second = batch.replicas == 2 and batch.ids[0] % batch.total
        return scaled(global_mean(weights, batch), 1.3 if second else 1.0)

    found = _judged(computed).findings[0]
    assert found.cause == "replica-computes-otherwise"
    assert "1 x on replica 0, 1.3 x on replica 1" in str(found.evidence)


def test_a_local_mean_over_tokens_that_is_summed_gets_the_fix_for_tokens() -> None:
    report = judged_with_slices(Way(computed=masked), Way(computed=masked_locally), 2, checks=NUMERIC)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count"
    assert "Add the count up over the replicas" in str(report.findings[0].fix)
    report = judged_with_slices(Way(), Way(computed=local_mean), 2, checks=NUMERIC)
    assert "compute_average_loss" in str(report.findings[0].fix)


def _with_a_term(term: Callable[[Gradient, Batch], Gradient]) -> Callable[[Gradient, Batch], Gradient]:
    def computed(weights: Gradient, batch: Batch) -> Gradient:
        return added(
            [global_mean(weights, batch), {**scaled(global_mean(weights, batch), 0.0), **term(weights, batch)}]
        )

    return computed


def _mean_of_squares(weights: Gradient, batch: Batch) -> Gradient:
    return {"bias": 0.3 * np.mean(batch.x[:, :3] ** 2, axis=0) + 0.1 * weights["bias"]}


def _largest_square(weights: Gradient, batch: Batch) -> Gradient:
    return {"bias": 0.3 * np.max(batch.x[:, :3] ** 2, axis=0)}


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_term_that_is_a_mean_over_the_replica_is_named(rule: dict[str, Any], replicas: int) -> None:
    way = Way(computed=_with_a_term(_mean_of_squares), **rule)
    first = judged_with_slices(way, way, replicas, checks=NUMERIC).findings[0]
    assert first.cause == "gradient-scaled-by-replica-count"
    assert f"counts in full: it is {replicas} times too large" in str(first.evidence)
    assert "One term of the loss" in str(first.fix)


def test_a_term_that_couples_examples_is_no_mean() -> None:
    way = Way(computed=_with_a_term(_largest_square))
    assert judged_with_slices(way, way, 2, checks=NUMERIC).findings[0].cause != "gradient-scaled-by-replica-count"
