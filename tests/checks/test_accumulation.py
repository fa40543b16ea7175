"""ACCUM, CLIP, MOVES and the learning rate in OPT-STATE on a single run: right ways pass, sins are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import (
    SHAPES,
    Way,
    added,
    clipped_by_norm,
    clipped_by_value,
    clipped_globally,
    global_mean,
    scaled,
    summed,
    train,
)

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import GradientStage, OptimizerRecord, TrainingRecord

CLIPPERS = {"clipnorm": clipped_by_norm, "global_clipnorm": clipped_globally, "clipvalue": clipped_by_value}
SIZES = (12,) * 6


def judged(way: Way, check: str, replicas: int = 2) -> tuple[Report, CheckResult]:
    """Compare the way with itself on one device: only a check of a single run can fail."""
    report = judge(train(way, 1), train(way, replicas), checks=[check])
    return report, next(result for result in report.results if result.check == check)


class Accumulate:
    """``handed`` of a program that adds up; a fresh one for every run."""

    def __init__(self, every: int, weights: Callable[[int], float] = lambda _step: 1.0, reset: bool = True) -> None:
        self.every, self.weights, self.reset = every, weights, reset
        self.sums: list[Any] = []

    def __call__(self, parts: Sequence[Any], step: int) -> Sequence[Any]:
        if step == 1:
            self.sums = [added([]) for _ in parts]
        self.sums = [added([old, scaled(new, self.weights(step))]) for old, new in zip(self.sums, parts, strict=True)]
        if step % self.every:
            return [added([]) for _ in parts]
        handed = [scaled(total, 1 / self.every) for total in self.sums]
        if self.reset:
            self.sums = [added([]) for _ in parts]
        return handed


def accumulating(every: int = 2, zeros: bool = False, **program: Any) -> Way:
    sums = {key: program.pop(key) for key in ("weights", "reset") if key in program}
    due = (lambda _step: True) if zeros else (lambda step: step % every == 0)
    return Way(sizes=SIZES, handed=Accumulate(every, **sums), updates=due, rate=lambda _step: 0.01, **program)


RIGHT = {
    "every step": Way(sizes=SIZES),
    "by hand": Way(sizes=SIZES, rule="hand"),
    "momentum by hand": Way(sizes=SIZES, rule="hand", momentum=0.9),
    "adam": Way(sizes=SIZES, rule="Adam"),
    "accumulation": accumulating(),
    "accumulation of three": accumulating(3),
    "accumulation and momentum": accumulating(momentum=0.9),
    "accumulation and adam": accumulating(rule="Adam"),
    "zeros and plain sgd": accumulating(zeros=True),
    "weighted micro-batches": accumulating(weights=lambda step: 1.0 + 0.3 * (step % 2)),
    "no gradient in the first step": Way(
        sizes=SIZES, momentum=0.9, computed=lambda w, b: scaled(global_mean(w, b), float(b.ids[0] >= 12))
    ),
    "no gradient in the first step, and weight decay": Way(
        sizes=SIZES,
        computed=lambda w, b: scaled(global_mean(w, b), float(b.ids[0] >= 12)),
        extra=lambda w, _step: {"kernel": w["kernel"] * 0.99},
    ),
    "held back at first": Way(
        sizes=SIZES, rule="Adam", handed=lambda parts, step: [scaled(p, float(step > 2)) for p in parts]
    ),
}


@pytest.mark.parametrize("way", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize("check", ["ACCUM", "CLIP", "MOVES", "OPT-STATE"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_right_ways_raise_no_alarm(way: Way, check: str, replicas: int) -> None:
    report, result = judged(way, check, replicas)
    assert not report.findings, str(report)
    assert result.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)


def test_a_gradient_that_was_zero_before_is_not_taken_for_an_accumulated_one() -> None:
    one = RIGHT["no gradient in the first step"]
    twice = replace(one, handed=lambda parts, _step: [scaled(part, 2.0) for part in parts])
    report = judge(train(one, 1), train(twice, 2), checks=["ACCUM"])
    assert not report.findings, str(report)


def test_accumulation_is_seen() -> None:
    assert judged(accumulating(), "ACCUM")[1].outcome is Outcome.PASS
    assert judged(Way(), "ACCUM")[1].outcome is Outcome.NOT_APPLICABLE
    blind = judged(replace(accumulating(), record=False), "ACCUM")[1]
    assert (blind.outcome, blind.reason) == (Outcome.NOT_APPLICABLE, "gradients were not recorded")


@pytest.mark.parametrize(
    ("way", "step"),
    [
        (accumulating(zeros=True, momentum=0.9), 3),
        (accumulating(zeros=True, rule="Adam"), 3),
        (replace(accumulating(zeros=True, rule="Adam"), sizes=SIZES[:2]), 1),
        (accumulating(reset=False), 4),
        (accumulating(3, reset=False), 6),
        (accumulating(1, reset=False), 2),
        (accumulating(reset=False, rule="Adam"), 4),
        (accumulating(3, weights=lambda step: float(step % 3 != 1)), 3),
        (accumulating(weights=lambda step: 1.0 + (step % 2)), 2),
        (accumulating(weights=lambda step: float(step % 2 == 0)), 2),
        (accumulating(extra=lambda w, step: {"kernel": w["kernel"] * 0.99} if step % 2 else {}), 1),
    ],
    ids=[
        *(
            "zeros and momentum",
            "zeros and adam",
            "zeros count for adam",
            "no reset",
            "no reset of three",
            "no reset in any step",
        ),
        *("no reset, adam", "one is lost", "one counts twice", "the last alone", "decays in between"),
    ],
)
def test_wrong_accumulation_is_named_on_one_device_too(way: Way, step: int) -> None:
    report, _result = judged(way, "ACCUM")
    (finding,) = report.findings
    assert (finding.cause, finding.step) == ("gradient-accumulation-wrong", step), str(report)


class UpdateFirst(Accumulate):
    """A program that records its step and then updates: the update counts for the next step, before its gradients."""

    def __call__(self, parts: Sequence[Any], step: int) -> Sequence[Any]:
        due = step > 1 and (step - 1) % self.every == 0
        handed = [scaled(total, 1 / self.every) for total in self.sums] if due else [added([]) for _ in parts]
        if step == 1 or (due and self.reset):
            self.sums = [added([]) for _ in parts]
        self.sums = [added([old, scaled(new, self.weights(step))]) for old, new in zip(self.sums, parts, strict=True)]
        return handed


def updating_first(way: Way, replicas: int, every: int = 2, in_order: bool = True, **sums: Any) -> TrainingRecord:
    updates = {"updates": lambda step: step > 1 and (step - 1) % every == 0}
    record = train(
        replace(way, sizes=SIZES, handed=UpdateFirst(every, **sums), rate=lambda _step: 0.01, **updates), replicas
    )
    (rank,) = record.ranks
    turned = tuple(replace(step, gradients=step.gradients[::-1]) for step in rank.steps) if in_order else rank.steps
    return replace(record, ranks=(replace(rank, steps=turned),))


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("way", [Way(), Way(momentum=0.9), Way(rule="Adam"), Way(rule="hand")])
def test_update_after_the_record_of_its_step(way: Way, every: int) -> None:
    report = judge(*(updating_first(way, replicas, every) for replicas in (1, 2)), checks=["ACCUM"])
    assert not report.findings, str(report)


@pytest.mark.parametrize(
    ("wrong", "step"),
    [
        ({"reset": False}, 5),
        ({"every": 3, "weights": lambda step: float(step % 3 != 1)}, 4),
        ({"every": 5, "weights": lambda step: float(step == 5)}, 6),
        ({"in_order": False}, 3),  # each update comes after the gradients of its step, and leaves them out
    ],
    ids=["no reset", "one is lost", "the last alone", "the last is lost"],
)
def test_wrong_update_after_the_record_of_its_step(wrong: dict[str, Any], step: int) -> None:
    report = judge(*(updating_first(Way(), replicas, **wrong) for replicas in (1, 2)), checks=["ACCUM"])
    (finding,) = report.findings
    assert (finding.cause, finding.step) == ("gradient-accumulation-wrong", step), str(report)


def test_gradients_that_a_step_computes_once_more_after_its_update() -> None:
    way = Way(sizes=SIZES, handed=lambda parts, _step: [scaled(part, 0.5) for part in parts])

    def shown_again(replicas: int) -> TrainingRecord:
        record = train(way, replicas)
        (rank,) = record.ranks
        again = [
            replace(
                step,
                gradients=(
                    *step.gradients,
                    *(replace(g, call=1) for g in step.gradients if g.stage is GradientStage.COMPUTED),
                ),
            )
            for step in rank.steps
        ]
        return replace(record, ranks=(replace(rank, steps=tuple(again)),))

    report = judge(shown_again(1), shown_again(2), checks=["ACCUM"])
    assert not report.findings, str(report)


def test_sums_by_hand_that_are_never_reset() -> None:
    class Reduced(Accumulate):
        def __call__(self, parts: Sequence[Any], step: int = 0) -> Sequence[Any]:
            self.count = 1 if not self.sums or len(self.sums) != len(parts) else self.count + 1
            return summed(super().__call__(parts, self.count))

    def way() -> Way:
        return Way(sizes=SIZES, rule="hand", reduced=Reduced(1, reset=False), rate=lambda _step: 0.01)

    report = judge(train(way(), 1), train(way(), 2), checks=["ACCUM"])
    assert [f.cause for f in report.findings] == ["gradient-accumulation-wrong"]


def test_accumulators_that_count_replicas_several_times() -> None:
    reference = train(accumulating(), 1)
    assert judge(reference, train(accumulating(), 2)).passed
    double = Accumulate(2)
    way = replace(accumulating(), handed=lambda parts, step: [scaled(p, 2.0) for p in double(parts, step)])
    report = judge(reference, train(way, 2))
    assert report.findings[0].cause == "gradient-accumulation-wrong"
    assert report.findings[0].check == "ACCUM"


def test_micro_batches_that_one_device_adds_up_are_left_out() -> None:
    alone = accumulating(weights=lambda step: 2.0 * (step % 2 == 0))
    assert judged(alone, "ACCUM")[1].outcome is not Outcome.FAIL, "a program may skip updates and their gradients"
    (finding,) = judge(train(accumulating(), 1), train(alone, 2), checks=["ACCUM"]).findings
    assert (finding.cause, finding.step) == ("gradient-accumulation-wrong", 2)


def test_update_in_another_step_than_on_one_device() -> None:
    late = Way(sizes=SIZES, handed=Accumulate(3), updates=lambda step: step % 3 == 0, rate=lambda _step: 0.01)
    report = judge(train(accumulating(), 1), train(late, 2))
    assert report.findings[0].cause == "gradient-accumulation-wrong"


@pytest.mark.parametrize("kind", CLIPPERS)
@pytest.mark.parametrize("rule", [{}, {"momentum": 0.9}, {"rule": "Adam"}], ids=["sgd", "momentum", "adam"])
def test_clipping_is_judged_on_each_run_alone(kind: str, rule: dict[str, Any]) -> None:
    clipper, limit = CLIPPERS[kind], 0.5
    settings = {kind: limit}
    right = Way(settings=settings, reduced=lambda parts: [clipper(limit, w) for w in summed(parts)], **rule)
    report, result = judged(right, "CLIP")
    assert result.outcome is Outcome.PASS, str(report)
    before = replace(right, reduced=lambda parts: summed([clipper(limit, part) for part in parts]))
    assert judged(before, "CLIP")[0].findings[0].cause == "gradient-clipped-before-aggregation"
    lost = replace(right, reduced=summed)
    assert judged(lost, "CLIP")[0].findings[0].cause == "clipping-lost"
    by_hand = Way(handed=lambda parts, _step: [clipper(limit, part) for part in parts], **rule)
    assert judged(by_hand, "CLIP")[0].findings[0].cause == "gradient-clipped-before-aggregation"


def test_no_clipping_is_no_clipping() -> None:
    halved = Way(handed=lambda parts, _step: [scaled(part, 0.5) for part in parts])
    assert judged(halved, "CLIP")[1].outcome is Outcome.NOT_APPLICABLE
    inactive = Way(settings={"clipnorm": 1e6})
    assert judged(inactive, "CLIP")[1].outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize("way", [Way(frozen=("bias",)), Way(skipped=("bias",)), Way(frozen=tuple(SHAPES))])
def test_weight_with_a_gradient_that_never_moves(way: Way) -> None:
    report, _result = judged(way, "MOVES")
    assert [finding.cause for finding in report.findings] == ["variable-did-not-move"], str(report)


@pytest.mark.parametrize(
    "way",
    [
        Way(computed=lambda w, b: {**global_mean(w, b), "bias": np.zeros(3)}),
        Way(computed=lambda w, b: {**global_mean(w, b), "bias": np.full(3, np.nan)}, frozen=("bias",)),
        Way(handed=lambda parts, _step: [{**part, "bias": np.zeros(3)} for part in parts]),
        Way(computed=lambda w, b: {**global_mean(w, b), "bias": np.full(3, 1e-25)}),
    ],
    ids=["no gradient", "not finite", "masked on purpose", "below the spacing"],
)
def test_weight_that_stands_still_for_a_reason(way: Way) -> None:
    assert not judged(way, "MOVES")[0].findings


def test_weights_stand_still_while_gradients_add_up_or_the_rate_is_0() -> None:
    assert not judged(accumulating(7), "MOVES")[0].findings
    assert not judged(Way(rate=lambda _step: 0.0), "MOVES")[0].findings


@pytest.mark.parametrize("rule", [{}, {"momentum": 0.9}, {"rule": "Adam"}], ids=["sgd", "momentum", "adam"])
def test_learning_rate_of_the_past(rule: dict[str, Any]) -> None:
    def falling(step: int) -> float:
        return 0.1 / 2**step

    schedule = {"schedule": "ExponentialDecay"}
    right = Way(rate=falling, used_rate=lambda step: falling(step - 1), settings=schedule, **rule)
    assert not judged(right, "OPT-STATE")[0].findings
    assert not judged(replace(right, used_rate=falling), "OPT-STATE")[0].findings
    report, _result = judged(replace(right, used_rate=lambda _step: falling(0)), "OPT-STATE")
    assert [finding.cause for finding in report.findings] == ["learning-rate-differs"], str(report)
    odd = replace(right, used_rate=lambda _step: 0.0123)
    assert not judged(odd, "OPT-STATE")[0].findings


def test_optimizers_that_share_a_counter() -> None:
    def handed(parts: Sequence[Any], _step: int) -> Sequence[Any]:
        return [{"kernel": part["kernel"] / 2} for part in parts]

    way = Way(handed=handed)

    def two(replicas: int) -> Any:
        record = train(replace(way, skipped=()), replicas)
        ranks = tuple(replace(rank, optimizers=rank.optimizers * 2) for rank in record.ranks)
        assert all(isinstance(o, OptimizerRecord) for rank in ranks for o in rank.optimizers)
        return replace(record, ranks=ranks)

    report = judge(two(1), two(2), checks=["ACCUM"])
    assert [finding.cause for finding in report.findings] == ["gradient-accumulation-wrong"]
    assert not judge(train(way, 1), train(way, 2), checks=["ACCUM"]).findings


@pytest.mark.parametrize("limit", [0.05, 0.3])
@pytest.mark.parametrize("clipper", [clipped_by_norm, clipped_globally])
def test_micro_batches_of_which_each_replica_clips_its_part_have_a_cause(
    clipper: Callable[..., Any], limit: float
) -> None:
    way = accumulating()
    add_up = way.handed

    def handed(parts: Sequence[Any], step: int) -> Sequence[Any]:
        return add_up([clipper(limit, part) for part in parts], step)

    clipping = replace(way, handed=handed)
    finding = judge(train(clipping, 1), train(clipping, 2), checks=["STEP-EQ"]).findings[0]
    assert (finding.step, finding.cause) == (2, "gradient-clipped-before-aggregation"), finding.evidence
    assert str(finding.fix) == SPECIAL["clipped-micro-batches"]


def test_micro_batches_that_are_weighted_without_a_limit_are_not_called_clipped() -> None:
    way = accumulating()
    add_up = way.handed

    def handed(parts: Sequence[Any], step: int) -> Sequence[Any]:
        return add_up([scaled(part, 0.7**number + 0.1 * step) for number, part in enumerate(parts)], step)

    weighted = replace(way, handed=handed)
    finding = judge(train(weighted, 1), train(weighted, 2), checks=["STEP-EQ"]).findings[0]
    assert finding.cause != "gradient-clipped-before-aggregation", finding.evidence
