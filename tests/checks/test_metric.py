"""METRIC-EQ and the loss that fit shows: what is right passes, each wrong formula is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.metric import check_metric
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import growth
from pytest_ddl.equivalence.evidence.slices import Slices
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Finding, Outcome, Reason
from pytest_ddl.equivalence.verdict.judge import judge, may_jump
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import StepRecord, TrainingRecord, VariableKind, VariableRecord

TOTAL, COUNT = 6, 7


def with_values(record: TrainingRecord, values: Callable[[int, int], dict[str, float]]) -> TrainingRecord:
    """The record with named values of each rank and step."""
    ranks = tuple(
        replace(rank, steps=tuple(replace(step, values=values(rank.rank, step.index)) for step in rank.steps))
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def with_results(record: TrainingRecord, results: dict[str, Any], step: int = 3) -> TrainingRecord:
    ranks = tuple(replace(rank, results=results, result_steps=dict.fromkeys(results, step)) for rank in record.ranks)
    return replace(record, ranks=ranks)


def with_metric(record: TrainingRecord, parts: Callable[[int], Sequence[tuple[float, float]]]) -> TrainingRecord:
    """The record with the total and count of one mean, per replica, at each step."""
    mirrored = record.num_replicas > 1
    names = tuple(
        VariableRecord(
            index, f"mean/{name}", VariableKind.METRIC, (), "float64", aggregation="sum", synchronization="on_read",
            distributed=mirrored,
        )
        for index, name in ((TOTAL, "total"), (COUNT, "count"))
    )  # fmt: skip

    def snapshot(known: Any, step: int, replicas: Sequence[int]) -> dict[int, Any]:
        found = parts(step)
        held = {at: tuple(np.asarray(found[r][n]) for r in replicas) for n, at in enumerate((TOTAL, COUNT))}
        return {**known, **held}

    ranks = tuple(
        replace(
            rank,
            variables=(*rank.variables, *names),
            initial=snapshot(rank.initial, 0, rank.replicas),
            steps=tuple(replace(s, snapshot=snapshot(s.snapshot, s.index, rank.replicas)) for s in rank.steps),
        )
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def shown(record: TrainingRecord, losses: Callable[[int], float]) -> TrainingRecord:
    """The record as fit leaves it: running means as losses."""

    def step(given: StepRecord) -> StepRecord:
        loss = losses(given.index)
        return replace(given, loss=loss, values={RUNNING_MEAN: loss})

    return replace(record, ranks=tuple(replace(r, steps=tuple(map(step, r.steps))) for r in record.ranks))


def outcome(report: Report) -> Outcome:
    return next(result.outcome for result in report.results if result.check == "METRIC-EQ")


def causes(report: Report) -> list[tuple[str, str | None]]:
    return [(finding.check, finding.cause) for finding in report.findings]


@pytest.fixture
def records() -> tuple[TrainingRecord, TrainingRecord]:
    return pair(Program(replicas=2))


def halves(step: int) -> list[tuple[float, float]]:
    return [(1.0 * step, 6.0 * step), (3.0 * step, 6.0 * step)]


def whole(step: int) -> list[tuple[float, float]]:
    return [(4.0 * step, 12.0 * step)]


def test_nothing_to_compare_is_said(records: Any) -> None:
    report = judge(*records)
    assert outcome(report) is Outcome.NOT_APPLICABLE
    assert report.passed


def test_state_is_compared_as_it_is_read(records: Any) -> None:
    reference, distributed = records
    good = judge(with_metric(reference, whole), with_metric(distributed, halves))
    assert outcome(good) is Outcome.PASS
    assert good.passed, str(good)
    wrong = judge(with_metric(reference, whole), with_metric(distributed, lambda step: [halves(step)[0]] * 2))
    assert causes(wrong) == [("METRIC-EQ", "metric-wrong")]


def test_state_that_each_update_sums_again_is_recomputed(records: Any) -> None:
    reference, distributed = records

    def grown(step: int) -> list[tuple[float, float]]:
        factor = 2.0**step - 1
        return [(2.0 * factor, 6.0 * factor)] * 2

    report = judge(with_metric(reference, whole), with_metric(distributed, grown))
    assert causes(report) == [("METRIC-EQ", "metric-wrong")]
    assert report.findings[0].step == 2
    assert "summed again" in str(report.findings[0].evidence)


def test_a_mean_that_every_replica_adds_to_is_the_same_mean(records: Any) -> None:
    reference, distributed = records

    def each(step: int) -> list[tuple[float, float]]:
        return [whole(step)[0], whole(step)[0]]

    def wrong(step: int) -> list[tuple[float, float]]:
        return [(3 * whole(step)[0][0], whole(step)[0][1]), whole(step)[0]]

    one = with_metric(reference, whole)
    assert outcome(judge(one, with_metric(distributed, each))) is Outcome.PASS
    assert outcome(judge(one, with_metric(distributed, wrong))) is Outcome.FAIL


def test_named_values_are_compared_on_every_rank() -> None:
    reference, distributed = pair(Program(replicas=2, workers=2))
    reference = with_values(reference, lambda _rank, step: {"accuracy": 0.5 + step / 7})
    good = judge(reference, with_values(distributed, lambda _rank, step: {"accuracy": 0.5 + step / 7}))
    assert good.passed, str(good)
    wrong = judge(reference, with_values(distributed, lambda rank, step: {"accuracy": 0.5 + step / 7 + 0.1 * rank}))
    assert causes(wrong) == [("METRIC-EQ", "metric-wrong")]
    assert (wrong.findings[0].worker, wrong.findings[0].step) == (1, 1)


def test_a_value_n_times_too_large_says_so(records: Any) -> None:
    reference, distributed = records
    values = lambda factor: lambda _rank, step: {"count": factor * 12.0 * step}  # noqa: E731
    report = judge(with_values(reference, values(1)), with_values(distributed, values(2)))
    assert "2 x the value of one device" in str(report.findings[0].evidence)


def test_what_differs_on_one_device_as_well_is_not_compared(records: Any) -> None:
    reference, distributed = records
    timed = [with_values(reference, lambda _rank, step, n=n: {"seconds": 0.01 * n + step / 100}) for n in range(4)]
    late = with_values(distributed, lambda _rank, step: {"seconds": 3.0 + step})
    report = judge(timed[0], late, timed[1:], again=timed[2])
    assert report.passed, str(report)
    assert any("not reproducible" in result.reason for result in report.results)


def test_a_value_that_is_the_same_each_time_is_not_excused_by_noise(records: Any) -> None:
    """Training that amplifies rounding gives a wide bound, but no other value in a second run."""
    reference, distributed = records
    noisy = [with_values(reference, lambda _rank, step, n=n: {"score": 1.0 + 0.1 * n}) for n in range(4)]
    wrong = with_values(distributed, lambda _rank, step: {"score": 1e6})
    within = with_values(distributed, lambda _rank, step: {"score": 1.2})
    assert judge(noisy[0], wrong, noisy[1:]).verdict == "inconclusive"
    assert [finding.variable for finding in judge(noisy[0], wrong, noisy[1:], again=noisy[0]).findings] == ["score"]
    assert judge(noisy[0], within, noisy[1:], again=noisy[0]).verdict == "inconclusive"


def test_ranks_and_numbers_of_replicas_are_not_compared() -> None:
    reference, distributed = pair(Program(replicas=2, workers=2))
    values = lambda number: lambda rank, _step: {"rank": rank, "num_replicas": number}  # noqa: E731
    report = judge(with_values(reference, values(1)), with_values(distributed, values(2)))
    assert report.passed, str(report)


@pytest.mark.parametrize("name", ["processed_fraction", "ranking", "multitask_score"])
def test_a_name_that_only_holds_such_a_word_is_compared(name: str) -> None:
    reference, distributed = pair(Program(replicas=2))
    records = (
        with_values(reference, lambda _rank, _step: {name: 1.0}),
        with_values(distributed, lambda _r, _s: {name: 2.0}),
    )
    assert [finding.variable for finding in judge(*records).findings] == [name]


def test_values_that_follow_from_other_weights_are_not_listed() -> None:
    reference, distributed = pair(Program(replicas=2), scale=2.0)
    report = judge(
        with_values(reference, lambda _rank, step: {"norm": 1.0 * step}),
        with_values(distributed, lambda _rank, step: {"norm": 2.0 * step}),
    )
    assert causes(report) == [("STEP-EQ", "gradient-scaled-by-replica-count")]


PREDICTED = np.linspace(0, 1, 10).reshape(5, 2)


@pytest.mark.parametrize(
    ("ours", "theirs", "cause"),
    [
        ({"evaluate": [0.3, 0.5]}, {"evaluate": [0.3, 0.25]}, "metric-wrong"),
        ({"evaluate": {"loss": 0.3, "auc": 0.5}}, {"evaluate": {"loss": 0.3, "auc": 0.7}}, "metric-wrong"),
        ({"fit": {"loss": [0.3, 0.2]}}, {"fit": {"loss": [0.3, 0.4]}}, "reported-loss-wrong"),
        ({"predict": PREDICTED}, {"predict": PREDICTED[:4]}, "examples-dropped"),
        ({"predict": PREDICTED}, {"predict": np.concatenate([PREDICTED, PREDICTED])}, "examples-duplicated"),
        ({"predict": PREDICTED}, {"predict": PREDICTED[::-1]}, "metric-wrong"),
        ({"predict": [PREDICTED, PREDICTED]}, {"predict": [PREDICTED, PREDICTED + 1]}, "metric-wrong"),
    ],
)
def test_results_of_calls(records: Any, ours: dict[str, Any], theirs: dict[str, Any], cause: str) -> None:
    reference, distributed = records
    assert judge(with_results(reference, ours), with_results(distributed, ours)).passed
    report = judge(with_results(reference, ours), with_results(distributed, theirs))
    assert causes(report) == [("METRIC-EQ", cause)]


def test_rows_in_another_order_are_recognised(records: Any) -> None:
    reference, distributed = records
    ours, theirs = ({"predict": rows} for rows in (PREDICTED, PREDICTED[[2, 0, 1, 4, 3]]))
    report = judge(with_results(reference, ours), with_results(distributed, theirs))
    assert "another order" in str(report.findings[0].evidence)


def test_a_program_that_only_evaluates_is_judged(records: Any) -> None:
    reference, distributed = (
        replace(record, ranks=tuple(replace(rank, steps=(), final=None) for rank in record.ranks)) for record in records
    )
    ours = {"evaluate": [0.3, 0.5]}
    good = judge(with_results(reference, ours, 0), with_results(distributed, ours, 0))
    assert good.passed, str(good)
    wrong = judge(with_results(reference, ours, 0), with_results(distributed, {"evaluate": [0.3, 1.0]}, 0))
    assert causes(wrong) == [("METRIC-EQ", "metric-wrong")]


def test_calls_before_an_interruption_have_no_counterpart(records: Any) -> None:
    reference, distributed = records
    first = with_results(reference, {"evaluate": [0.3], "evaluate#2": [0.2]})
    ranks = tuple(replace(rank, result_steps={"evaluate": 1, "evaluate#2": 3}) for rank in first.ranks)
    later = with_results(distributed, {"evaluate": [0.2]})
    resumed = replace(later, ranks=tuple(replace(rank, resumed={2: {}}) for rank in later.ranks))
    assert judge(replace(first, ranks=ranks), resumed).passed
    assert judge(replace(first, ranks=ranks), later).verdict == "inconclusive", "nothing interrupted this run"


def test_nothing_recorded_does_not_pass(records: Any) -> None:
    empty = [replace(record, ranks=tuple(replace(rank, steps=()) for rank in record.ranks)) for record in records]
    found = check_metric(Comparison(*empty, Tolerance(empty[0])))
    assert found.outcome is Outcome.INCONCLUSIVE


def by_fit(distributed: TrainingRecord, show: Callable[[Sequence[tuple[float, float]]], float], parts: Any) -> Any:
    record = with_metric(distributed, parts)
    return shown(record, lambda step: show(parts(step)))


def mean_of_means(parts: Sequence[tuple[float, float]]) -> float:
    return sum(total / count for total, count in parts) / len(parts)


def uneven(step: int) -> list[tuple[float, float]]:
    return [(1.0 * step, 8.0 * step), (3.0 * step, 4.0 * step)]


FIT: list[tuple[Callable[[Sequence[tuple[float, float]]], float], Any, list[tuple[str, str | None]], str]] = [
    (mean_of_means, halves, [], ""),
    (mean_of_means, uneven, [], "mean-of-replica-means"),
    (lambda parts: sum(t / c for t, c in parts), halves, [], "reported-loss-wrong"),
    (lambda parts: parts[0][0] / parts[0][1], halves, [("LOSS-EQ", "reported-loss-wrong")], ""),
    (lambda parts: 0.123, halves, [("LOSS-EQ", "reported-loss-wrong")], ""),
]


@pytest.mark.parametrize(("show", "parts", "found", "approximation"), FIT)
def test_the_loss_that_fit_shows_is_recomputed(
    records: Any, show: Any, parts: Any, found: list[Any], approximation: str
) -> None:
    reference, distributed = records
    reference = shown(with_metric(reference, whole), lambda step: 1 / 3)
    report = judge(reference, by_fit(distributed, show, parts))
    assert causes(report) == found, str(report)
    told: list[Finding] = list(report.approximations)
    assert [finding.cause for finding in told] == ([approximation] if approximation else [])


def test_a_result_that_follows_a_declared_difference_is_left_open() -> None:
    """A wrong evaluation may be behind the weights that differ: nothing compares it, so it is not passed over."""
    cause = "gradient-scaled-by-replica-count"
    reference, distributed = pair(Program(replicas=2, batches=(12,)), scale=2.0)
    assert judge(reference, distributed, expect={cause: "known"}).passed
    records = with_results(reference, {"evaluate": [0.3]}, 1), with_results(distributed, {"evaluate": [0.7]}, 1)
    report = judge(*records, expect={cause: "known"})
    assert report.verdict == "inconclusive"
    assert "METRIC-EQ: not compared: evaluate[0] (the weights differ from step 1 on)" in report.inconclusive
    before = [with_results(record, {"evaluate": [0.3]}, 0) for record in (reference, distributed)]
    assert judge(*before, expect={cause: "known"}).passed


def test_what_could_not_be_compared_is_in_the_report(records: Any) -> None:
    reference, distributed = records
    nothing = {"evaluate": [float("nan"), 0.5]}
    report = judge(with_results(reference, nothing), with_results(distributed, nothing))
    assert "METRIC-EQ did not compare evaluate[0] (not finite on one device)" in str(report)


def test_a_mean_that_each_replica_counts_by_itself_is_accounted_for(records: Any) -> None:
    """Each replica adds the mean of its examples with a count of 1: total and count are N times those of one device."""
    reference, distributed = records
    ours = with_metric(reference, lambda step: [(0.5 * step, float(step))])
    theirs = with_metric(distributed, lambda step: [(0.4 * step, float(step)), (0.6 * step, float(step))])
    report = judge(ours, theirs)
    assert report.passed, str(report)
    assert report.ledger.compared == len(report.ledger.entries)


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        (lambda value, _step: 2 * value, "pass"),
        (lambda value, _step: value + 3, "pass"),
        (lambda value, step: value + 3 if step > 1 else value, "pass"),
        (lambda value, step: 2 * value if step < 3 else 5 * value, "inconclusive"),
        (lambda value, step: 2 * value if step < 3 else 0 * value, "inconclusive"),
        (lambda value, step: value + step, "inconclusive"),
        (lambda value, step: 2 * value if step < 3 else float("nan"), "inconclusive"),
    ],
)
def test_a_declared_wrong_value_excuses_later_ones_that_are_wrong_alike(records: Any, wrong: Any, verdict: str) -> None:
    reference, distributed = (
        with_values(record, lambda _rank, step: {"score": float(step * step)}) for record in records
    )
    distributed = with_values(distributed, lambda _rank, step: {"score": wrong(float(step * step), step)})
    assert judge(reference, distributed).verdict == "fail"
    assert judge(reference, distributed, expect=["metric-wrong"]).verdict == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (lambda step: [(9.0 * step, 24.0 * step)] * 2, "pass"),
        (lambda step: [(9.0 * step, 24.0 * step)] * 2 if step < 3 else [(5.0, 7.0)] * 2, "inconclusive"),
        (lambda step: [(halves(step)[0][0], 12.0 * step), (halves(step)[1][0] + step * step, 0.0)], "inconclusive"),
    ],
)
def test_declared_wrong_state_excuses_later_state_that_is_wrong_alike(records: Any, parts: Any, verdict: str) -> None:
    reference, distributed = records
    reference, distributed = with_metric(reference, whole), with_metric(distributed, parts)
    assert judge(reference, distributed).verdict == "fail"
    assert judge(reference, distributed, expect=["metric-wrong"]).verdict == verdict


def test_state_of_one_replica_is_wrong_alike_in_all_steps(records: Any) -> None:
    """The program reads the first replica's state, and the sum of both is right, in other shares in each step."""
    reference, distributed = records
    distributed = with_metric(
        distributed, lambda step: [(float(step * step) / 9, 2.0 * step), (4.0 * step - step * step / 9, 10.0 * step)]
    )
    variables = tuple(
        replace(one, aggregation="none") if one.index == TOTAL else one for one in distributed.ranks[0].variables
    )
    ranks = tuple(replace(rank, variables=variables) for rank in distributed.ranks)
    distributed = replace(distributed, ranks=ranks)
    reference = with_metric(reference, whole)
    assert judge(reference, distributed).verdict == "fail"
    assert judge(reference, distributed, expect=["metric-wrong"]).passed


@pytest.mark.parametrize(
    ("jump", "fails"),
    [(0, True), (1, True), (2, False), (3, False)],
    ids=["still", "less than the difference", "as far", "farther"],
)
@pytest.mark.parametrize("place", ["result", "state", "state at the end"])
def test_a_count_that_rounding_moves_as_far_is_not_judged(records: Any, place: str, jump: int, fails: bool) -> None:
    """An accuracy stands still if weights move by an ulp, and jumps if rounding moves an example over a threshold."""

    def with_correct(record: TrainingRecord, correct: int) -> TrainingRecord:
        if place == "result":
            return with_results(record, {"evaluate": [np.float32(correct / 192)]})

        def state(number: float) -> list[tuple[float, float]]:
            return [(number / 2, 96.0)] * 2 if record.num_replicas > 1 else [(float(number), 192.0)]

        if place == "state":
            return with_metric(record, lambda _step: state(correct))
        final = {TOTAL: tuple(np.asarray(total) for total, _count in state(correct))}
        trained = with_metric(record, lambda _step: state(24))
        return replace(trained, ranks=tuple(replace(rank, final=final) for rank in trained.ranks))

    reference, distributed = with_correct(records[0], 22), with_correct(records[1], 20)
    perturbed = [reference] * 3
    assert causes(before := judge(reference, distributed, perturbed)) == [("METRIC-EQ", "metric-wrong")]
    assert may_jump(before)
    assert may_jump(replace(before, findings=[*before.findings, Finding("STATE-EQ", "another")]))
    assert not may_jump(replace(before, findings=[]))
    far = Slices(0, far=(reference, with_correct(records[0], 22 + jump)))
    report = judge(reference, distributed, perturbed, slices=far)
    if fails:
        assert causes(report) == [("METRIC-EQ", "metric-wrong")], str(report)
        assert may_jump(report)
    else:
        assert report.verdict == "inconclusive", str(report)
        result = next(one for one in report.results if one.check == "METRIC-EQ")
        assert {item.reason for item in result.unjudged} == (set() if "end" in place else {Reason.JUMPS})


@pytest.mark.parametrize(
    ("counts", "grown"),
    [((0, 4, 8, 12), -7.0), ((0, 4, 8, 4), -2.0), ((0, 4, 4, 4), -2.0)],
    ids=["one epoch", "an epoch of two steps", "epochs of one step"],
)
def test_a_sum_of_signed_values_that_falls_is_not_reset(counts: Sequence[float], grown: float) -> None:
    totals = (0.0, -1.0, -3.0, -2.0)
    reference, _ = pair(Program(replicas=2))
    reference = with_metric(reference, lambda step: [(totals[step], counts[step])])
    assert growth(reference, TOTAL, 3, replicas=2) == grown
