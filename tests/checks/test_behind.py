"""A defect that ``expect=`` declares excuses no other: a second one is found, or the report does not pass."""

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
    averaged,
    clipped_globally,
    coupled,
    global_mean,
    local_mean,
    masked,
    masked_locally,
    scaled,
    summed,
    train,
)
from simulated_training import Program, pair

from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import LayerRecord, StepRecord, TrainingRecord

UNEVEN = (12, 5, 12)
BEFORE = "gradient-clipped-before-aggregation"

DECLARED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "state-not-aggregated": ({}, {"state_local": True}),
    "mean-of-replica-means": ({"batches": UNEVEN}, {"mean_of_means": True}),
    "reported-loss-wrong": ({}, {"loss": "first"}),
    "iteration-count-wrong": ({}, {"extra_iterations": 1}),
    "learning-rate-differs": ({}, {"learning_rate_factor": 3.0}),
    "optimizer-state-mismatch": ({"momentum": 0.9}, {"slot_factor": 3.0}),
    "examples-duplicated": ({}, {"duplicate": True}),
    "global-batch-wrong": ({}, {"drop": True}),
    "unequal-steps": ({}, {"truncate": 2}),
    "initial-weights-differ": ({}, {"initial_shift": 0.1}),
    "frozen-variable-moved": ({}, {"frozen_moves": True}),
}
"""Cause -> the program, and what in it is declared."""

SECOND: dict[str, dict[str, Any]] = {
    "doubled gradient": {"scale": 2.0},
    "unexplained gradient": {"scale": 1.37},
    "replicas drift apart": {"worker_shift_at": 2},
    "batches in another order": {"reorder_batches": True},
    "a weight that stands still": {"still": True},
    "weights that are not finite": {"nan_at": 2},
}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("cause", DECLARED)
def test_a_declared_difference_hides_no_second_defect(cause: str, second: str) -> None:
    program, first = DECLARED[cause]
    report = judge(*pair(Program(replicas=2, **program), **first, **SECOND[second]), expect={cause: "declared"})
    assert report.verdict != "pass", str(report)
    assert all(finding.cause != cause for finding in report.findings)


@pytest.mark.parametrize("cause", DECLARED)
def test_a_declared_difference_is_excused_itself(cause: str) -> None:
    program, first = DECLARED[cause]
    also = ["examples-dropped"] if cause == "examples-duplicated" else []
    report = judge(*pair(Program(replicas=2, **program), **first), expect=[cause, *also])
    assert not report.findings, str(report)


@pytest.mark.parametrize(
    "cause",
    [
        "state-not-aggregated",
        "reported-loss-wrong",
        "iteration-count-wrong",
        "learning-rate-differs",
        "optimizer-state-mismatch",
        "unequal-steps",
    ],
)
def test_a_declared_difference_that_leaves_all_else_comparable_passes(cause: str) -> None:
    program, first = DECLARED[cause]
    report = judge(*pair(Program(replicas=2, **program), **first), expect={cause: "declared"})
    assert report.passed, str(report)


def _with_losses(record: TrainingRecord, change: Callable[[int, float], float]) -> TrainingRecord:
    """Change the loss of each step."""

    def changed(step: StepRecord) -> StepRecord:
        return replace(step, loss=change(step.index, step.loss or 0.0))

    return replace(record, ranks=tuple(replace(rank, steps=tuple(map(changed, rank.steps))) for rank in record.ranks))


@pytest.mark.parametrize(
    ("program", "change", "verdict"),
    [
        ({"loss": "first"}, lambda step, loss: loss, "pass"),
        ({"loss": "sum"}, lambda step, loss: loss, "pass"),
        ({}, lambda step, loss: 1.37 * loss, "pass"),
        ({"loss": "first"}, lambda step, loss: loss * (1.37 if step == 3 else 1.0), "inconclusive"),
        ({"loss": "sum"}, lambda step, loss: loss / (1.0 if step == 1 else 4.0), "inconclusive"),
        ({}, lambda step, loss: 1.37**step * loss, "inconclusive"),
        ({}, lambda step, loss: loss + step, "inconclusive"),
        ({}, lambda step, loss: float("nan"), "inconclusive"),
    ],
    ids=["own", "sum", "factor", "own, then another", "sum, then half", "growing", "added", "not a number"],
)
def test_a_declared_loss_excuses_only_losses_that_are_wrong_in_the_same_way(
    program: dict[str, Any], change: Callable[[int, float], float], verdict: str
) -> None:
    reference, distributed = pair(Program(replicas=2), **program)
    report = judge(reference, _with_losses(distributed, change), expect=["reported-loss-wrong"])
    assert report.verdict == verdict, str(report)
    assert {doubt.check for doubt in report.doubts} == ({"LOSS-EQ"} if verdict == "inconclusive" else set())


def _with_losses_of_replicas(
    record: TrainingRecord, of: Callable[[int, int, float], float], reduced: Callable[[list[float]], float]
) -> TrainingRecord:
    """Change the losses of the replicas, given ``(step, replica, mean over its examples)``, and how a step reduces."""

    def changed(step: StepRecord) -> StepRecord:
        batches = [replace(one, loss=of(step.index, one.replica, one.loss or 0.0)) for one in step.batches]
        return replace(step, loss=reduced([one.loss or 0.0 for one in batches]), batches=tuple(batches))

    return replace(record, ranks=tuple(replace(rank, steps=tuple(map(changed, rank.steps))) for rank in record.ranks))


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    ("of", "reduced", "batches", "verdict"),
    [
        (lambda step, replica, mean: mean, sum, (12, 12, 12), "pass"),
        (lambda step, replica, mean: mean / 2, _mean, (12, 12, 12), "pass"),
        (lambda step, replica, mean: mean, sum, UNEVEN, "pass"),
        (lambda step, replica, mean: mean / 2, _mean, UNEVEN, "pass"),
        (lambda step, replica, mean: 1.37 * mean, _mean, (12, 12, 12), "pass"),
        (lambda step, replica, mean: 6 * mean, lambda losses: losses[0], (12, 12, 12), "pass"),
        (lambda step, replica, mean: mean if step < 3 else mean / 2 + 777, sum, (12, 12, 12), "inconclusive"),
        (lambda step, replica, mean: mean / 2 + (777 if step > 2 else 0), _mean, (12, 12, 12), "inconclusive"),
        (lambda step, replica, mean: mean * (1 if step < 3 else 1 - replica), sum, (12, 12, 12), "inconclusive"),
        (lambda step, replica, mean: mean + 777 * (step > 2), lambda losses: losses[0], (12, 12, 12), "inconclusive"),
        (lambda step, replica, mean: mean * (1 if step < 3 else 6), sum, (12, 12, 12), "inconclusive"),
    ],
    ids=[
        "summed means",
        "mean of shares",
        "summed means of uneven batches",
        "mean of shares of uneven batches",
        "factor",
        "the first replica's sum",
        "sum, then another loss",
        "mean of shares, then another loss",
        "sum, then one replica's share",
        "own, then another loss",
        "sum of means, then sum of sums",
    ],
)
def test_a_reduction_of_losses_that_are_wrong_themselves_excuses_nothing(
    of: Callable[[int, int, float], float],
    reduced: Callable[[list[float]], float],
    batches: tuple[int, ...],
    verdict: str,
) -> None:
    reference, distributed = pair(Program(replicas=2, batches=batches))
    changed = _with_losses_of_replicas(distributed, of, reduced)
    report = judge(reference, changed, expect=["reported-loss-wrong"])
    assert report.verdict == verdict, str(report)


def _declared(right: Way, wrong: Way, cause: str) -> Report:
    return judge(train(right, 1), train(wrong, 2), expect={cause: "declared"})


def _doubled(parts: Sequence[Gradient]) -> list[Gradient]:
    return [scaled(whole, 2.0) for whole in averaged(parts)]


def _late(weights: Gradient, step: int) -> Gradient:
    return {name: value * (1.5 if step == 3 else 1.0) for name, value in weights.items()}


APPROXIMATE = {"computed": local_mean, "reduced": averaged, "sizes": (13, 13, 13)}
BEHIND_AN_APPROXIMATION: dict[str, dict[str, Any]] = {
    "doubled gradient": {"reduced": _doubled},
    "unexplained gradient": {"reduced": lambda parts: [added(parts, 0.7)] * len(parts)},
    "lost update in the last step": {"updates": lambda step: step != 3},
    "another learning rate later": {"used_rate": lambda step: 0.1 if step < 3 else 0.2},
}


@pytest.mark.parametrize("expect", [[], ["mean-of-replica-means"]], ids=str)
@pytest.mark.parametrize("second", BEHIND_AN_APPROXIMATION)
def test_an_approximation_hides_no_second_defect(second: str, expect: list[str]) -> None:
    right, wrong = Way(sizes=APPROXIMATE["sizes"]), Way(**{**APPROXIMATE, **BEHIND_AN_APPROXIMATION[second]})
    report = judge(train(right, 1), train(wrong, 2), expect=expect)
    assert report.verdict != "pass", str(report)


@pytest.mark.parametrize("expect", [[], ["mean-of-replica-means"]], ids=str)
def test_a_recomputed_approximation_of_the_last_step_passes(expect: list[str]) -> None:
    sizes = (12, 12, 13)
    report = judge(train(Way(sizes=sizes), 1), train(Way(**{**APPROXIMATE, "sizes": sizes}), 2), expect=expect)
    assert report.passed, str(report)


@pytest.mark.parametrize("expect", [[], ["mean-of-replica-means"]], ids=str)
def test_an_approximation_of_a_right_program_leaves_only_the_later_steps_open(expect: list[str]) -> None:
    """The probe that follows the strategy compares them from equal weights."""
    for more in ({}, {"rule": "Adam"}, {"momentum": 0.9}, {"rule": "hand"}, {"rate": lambda step: 0.1 / (1 + step)}):
        right = train(Way(sizes=APPROXIMATE["sizes"], **more), 1)
        report = judge(right, train(Way(**APPROXIMATE, **more), 2), expect=expect)
        assert _open_after_a_step(report), str(report)


MASKED = {"computed": masked_locally, "reduced": averaged}
BEHIND_A_MASK: dict[str, dict[str, Any]] = {
    "doubled gradient": {"reduced": _doubled},
    "unexplained gradient": {"reduced": lambda parts: [added(parts, 0.7)] * len(parts)},
    "lost update in the last step": {"updates": lambda step: step != 3},
    "weights changed in the last step": {"extra": _late},
    "another learning rate later": {"used_rate": lambda step: 0.1 if step < 3 else 0.2},
}


@pytest.mark.parametrize("second", BEHIND_A_MASK)
@pytest.mark.parametrize("rule", [{}, {"rule": "Adam"}, {"momentum": 0.9}], ids=["sgd", "adam", "momentum"])
def test_a_mean_over_each_replica_s_tokens_hides_no_second_defect(rule: dict[str, Any], second: str) -> None:
    right = Way(computed=masked, **rule)
    wrong = Way(**{**MASKED, **rule, **BEHIND_A_MASK[second]})
    report = _declared(right, wrong, "masked-loss-normalised-per-replica")
    assert report.verdict != "pass", str(report)


@pytest.mark.parametrize("rule", [{}, {"rule": "Adam"}, {"momentum": 0.9}], ids=["sgd", "adam", "momentum"])
def test_a_recomputed_cause_leaves_only_the_later_steps_open(rule: dict[str, Any]) -> None:
    report = _declared(Way(computed=masked, **rule), Way(**MASKED, **rule), "masked-loss-normalised-per-replica")
    assert _open_after_a_step(report), str(report)


def _open_after_a_step(report: Report) -> bool:
    """Return whether the steps after an excused one are all that is left open."""
    (reason,) = report.inconclusive or ("",)
    return not report.findings and "is excused in step 1, and the steps after it" in reason


CLIPPED: dict[str, Callable[[Sequence[Gradient]], list[Gradient]]] = {
    "sum": lambda parts: summed([clipped_globally(0.3, part) for part in parts]),
    "mean": lambda parts: averaged([clipped_globally(0.3, part) for part in parts]),
}
CLIPPED_RIGHTLY: dict[str, Callable[[Sequence[Gradient]], list[Gradient]]] = {
    "sum": lambda parts: [clipped_globally(0.3, whole) for whole in summed(parts)],
    "mean": lambda parts: [clipped_globally(0.3, whole) for whole in averaged(parts)],
}
OF_REPLICA = {"sum": global_mean, "mean": local_mean}


def _one_layer_larger(weights: Gradient, batch: Batch) -> Gradient:
    gradient = global_mean(weights, batch)
    return {**gradient, "kernel": 1.5 * gradient["kernel"]} if batch.replicas > 1 else gradient


def _one_variable_of_the_first(parts: Sequence[Gradient], _step: int) -> list[Gradient]:
    if len(parts) == 1:
        return list(parts)
    return [{**part, "bias": 2.0 * (replica == 0) * part["bias"]} for replica, part in enumerate(parts)]


def _all_larger(weights: Gradient, batch: Batch) -> Gradient:
    return scaled(global_mean(weights, batch), float(batch.replicas))


BEHIND_A_LIMIT: dict[str, dict[str, Any]] = {
    "scale of one layer": {"computed": _one_layer_larger},
    "scale that the limit hides": {"computed": _all_larger},
    "one variable of one replica": {"handed": _one_variable_of_the_first},
}


@pytest.mark.parametrize("second", BEHIND_A_LIMIT)
def test_a_declared_limit_hides_no_wrong_gradient(second: str) -> None:
    """The update follows from the gradients of the replicas, but these are not those of one device."""
    wrong = Way(reduced=CLIPPED["sum"], **BEHIND_A_LIMIT[second])
    report = _declared(Way(reduced=CLIPPED_RIGHTLY["sum"]), wrong, BEFORE)
    assert report.verdict != "pass", str(report)
    assert any("a second defect behind it would not be seen" in reason for reason in report.inconclusive), str(report)


@pytest.mark.parametrize("join", CLIPPED)
def test_a_declared_limit_leaves_only_the_later_steps_open(join: str) -> None:
    computed = OF_REPLICA[join]
    right = Way(computed=computed, reduced=CLIPPED_RIGHTLY[join])
    report = _declared(right, Way(computed=computed, reduced=CLIPPED[join]), BEFORE)
    assert _open_after_a_step(report), str(report)


def test_a_coupled_loss_cannot_be_seen_behind() -> None:
    for sin in ({}, {"reduced": lambda parts: [scaled(added(parts), 2.0)] * len(parts)}):
        report = _declared(Way(computed=coupled), Way(computed=coupled, **sin), "batch-coupled-loss")
        assert report.verdict == "inconclusive", str(report)
        assert "a second defect behind it would not be seen" in str(report.inconclusive)


@pytest.mark.parametrize(
    ("layer", "cause"),
    [
        (LayerRecord("bn", "BatchNormalization", {"synchronized": False}), "per-replica-normalization"),
        (LayerRecord("drop", "Dropout", {"rate": 0.5}), "random-stream-differs-across-replicas"),
        (LayerRecord("embed", "Embedding", {"mask_zero": True}), "masked-loss-normalised-per-replica"),
    ],
)
def test_a_guessed_cause_excuses_nothing_for_certain(layer: LayerRecord, cause: str) -> None:
    report = judge(*pair(Program(replicas=2, layers=(layer,)), scale=1.37), expect={cause: "by design"})
    assert report.verdict == "inconclusive", str(report)
    assert [reason for _finding, reason in report.expected] == ["by design"]


def test_a_cause_that_was_switched_off_is_not_named() -> None:
    layers = (
        LayerRecord("drop", "Dropout", {"rate": 0.5}),
        LayerRecord("bn", "BatchNormalization", {"synchronized": False}),
    )
    records = pair(Program(replicas=2, layers=layers), scale=1.37)
    off = [replace(record, neutralized=("random", "normalization")) for record in records]
    causes = ["random-stream-differs-across-replicas", "per-replica-normalization"]
    assert judge(*records).findings[0].cause in causes
    report = judge(*off, expect=dict.fromkeys(causes, "by design"))
    assert [finding.cause for finding in report.findings] == [None]
    assert np.isfinite(report.findings[0].error or np.nan)
