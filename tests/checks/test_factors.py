"""Updates that are right but for one factor, and micro-batches, examples and counters that look like other causes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import (
    Way,
    added,
    apart,
    clipped_globally,
    global_mean,
    judged_with_slices,
    scaled,
    summed,
    train,
)

from pytest_ddl.equivalence.findings import Finding, Grounds
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import GradientRecord, StepRecord, TrainingRecord, VariableKind

NUMERIC = ["STEP-EQ", "OPT-STATE", "REPLICA-EQ", "MOVES"]
LIMIT = 0.5


def first(right: Way, wrong: Way) -> Finding:
    return judge(train(right, 1), train(wrong, 2), checks=NUMERIC).findings[0]


def _norm(gradient: Any) -> float:
    return float(np.sqrt(sum(np.sum(np.square(value)) for value in gradient.values())))


@pytest.mark.parametrize("size", [lambda parts: _norm(parts[0]), lambda parts: sum(map(_norm, parts))])
def test_norm_of_another_gradient(size: Any) -> None:
    def limited(parts: Any) -> Any:
        return [scaled(added(parts), LIMIT / size(parts))] * len(parts)

    right = Way(rule="hand", reduced=lambda parts: [clipped_globally(LIMIT, whole) for whole in summed(parts)])
    finding = first(right, replace(right, reduced=limited))
    assert (finding.cause, finding.grounds) == ("gradient-clipped-before-aggregation", Grounds.RECOMPUTED)


def test_norms_that_only_one_device_limits() -> None:
    right = Way(rule="hand", reduced=lambda parts: [clipped_globally(LIMIT, whole) for whole in summed(parts)])
    finding = first(right, replace(right, reduced=lambda parts: [scaled(whole, 0.13) for whole in summed(parts)]))
    assert finding.cause in ("clipping-lost", "gradient-clipped-before-aggregation")


def test_rate_of_a_schedule_by_hand() -> None:
    right = Way(rule="hand", used_rate=lambda step: 0.1 / step)
    finding = first(right, replace(right, used_rate=lambda step: 0.1 / (2 * step - 1)))
    assert (finding.cause, finding.step, finding.grounds) == ("learning-rate-differs", 2, Grounds.RATIO)
    constant = Way(rule="hand")
    assert first(constant, replace(constant, used_rate=lambda step: 0.1 if step == 1 else 0.07)).cause is None


def test_another_rate_on_each_replica() -> None:
    def unlike(parts: Any) -> Any:
        return [scaled(whole, factor) for whole, factor in zip(summed(parts), (1.0, 0.7), strict=True)]

    assert first(Way(rule="hand"), Way(rule="hand", reduced=unlike)).cause == "learning-rate-differs"


def test_own_gradients_behind_an_unknown_rule() -> None:
    """The reductions of the step hold no gradient, and the copies drift."""

    def signs(parts: Any) -> Any:
        return [{name: np.sign(value) for name, value in part.items()} for part in parts]

    right = Way(rule="hand", reduced=lambda parts: signs(summed(parts)))
    assert first(right, replace(right, reduced=lambda parts: signs(apart(parts)))).cause == "gradient-not-aggregated"


def _in_two_calls(record: TrainingRecord) -> TrainingRecord:
    """Split each recorded gradient into those of two micro-batches."""

    def split(item: GradientRecord) -> list[GradientRecord]:
        noise = np.random.default_rng(item.replica)
        shares = {i: noise.uniform(0.2, 0.8, np.shape(value)) for i, value in item.values.items()}
        parts = [{i: v * shares[i] for i, v in item.values.items() if v is not None} for _ in range(1)]
        parts.append({i: v * (1 - shares[i]) for i, v in item.values.items() if v is not None})
        return [replace(item, call=call, values=values) for call, values in enumerate(parts)]

    def of(step: StepRecord) -> StepRecord:
        return replace(step, gradients=tuple(part for item in step.gradients for part in split(item)))

    return replace(record, ranks=tuple(replace(r, steps=tuple(map(of, r.steps))) for r in record.ranks))


def test_micro_batches_that_do_not_enter_the_update() -> None:
    last: list[Any] = []

    def of_the_second(parts: Any) -> Any:
        kept = []
        for replica, part in enumerate(parts):
            noise = np.random.default_rng(replica)
            kept.append({name: value * (1 - noise.uniform(0.2, 0.8, value.shape)) for name, value in part.items()})
        last.append(kept)
        return summed(kept)

    right, wrong = Way(rule="hand"), Way(rule="hand", reduced=of_the_second)
    records = [_in_two_calls(train(way, replicas)) for way, replicas in ((right, 1), (wrong, 2))]
    finding = judge(*records, checks=NUMERIC).findings[0]
    assert (finding.cause, finding.grounds) == ("gradient-accumulation-wrong", Grounds.RECOMPUTED)
    assert "without micro-batch 1 of 2" in (finding.evidence or "")
    fewer = judge(records[0], train(wrong, 2), checks=NUMERIC).findings[0]
    assert (fewer.cause, fewer.grounds) == ("gradient-accumulation-wrong", Grounds.PATTERN)


def _with_contents(record: TrainingRecord, altered: tuple[int, ...] = (), ids: bool = True) -> TrainingRecord:
    def of(step: StepRecord) -> StepRecord:
        batches = tuple(
            replace(
                batch,
                fingerprints=tuple(int(i) + 1000 + 5000 * (batch.replica in altered) for i in batch.example_ids or ()),
                example_ids=batch.example_ids if ids else None,
            )
            for batch in step.batches
        )
        return replace(step, batches=batches)

    return replace(record, ranks=tuple(replace(r, steps=tuple(map(of, r.steps))) for r in record.ranks))


def test_examples_that_only_one_replica_alters() -> None:
    odd = Way(reduced=lambda parts: [scaled(added(parts), 1.3)] * 2)
    reference = _with_contents(train(Way(), 1))
    report = judge(reference, _with_contents(train(odd, 2), (1,)), checks=["DATA-COVER", "STEP-EQ"])
    assert report.findings[0].cause == "examples-altered", str(report)
    assert "replica 1" in str(report)
    right = judge(reference, _with_contents(train(Way(), 2), (1,)), checks=["DATA-COVER", "STEP-EQ"])
    assert right.passed, "other contents matter only if they change something"


def test_contents_that_are_unknown_on_one_replica_may_be_another_shard() -> None:
    reference = _with_contents(train(Way(), 1), ids=False)
    report = judge(reference, _with_contents(train(Way(), 2), (1,), ids=False), checks=["DATA-COVER"])
    assert report.findings[0].cause is None
    assert "replica 1" in " ".join(report.findings[0].look_at)


def test_a_counter_that_falls_began_anew() -> None:
    record = train(Way(rule="Adam"), 2)
    index = next(v.index for v in record.variables if v.kind is VariableKind.ITERATIONS)

    def of(step: StepRecord) -> StepRecord:
        counted = tuple(np.asarray(step.index - 2 if step.index == 3 else step.index) for _ in range(2))
        return replace(step, snapshot={**step.snapshot, index: counted})

    again = replace(record, ranks=tuple(replace(r, steps=tuple(map(of, r.steps))) for r in record.ranks))
    findings = judge(train(Way(rule="Adam"), 1), again, checks=["OPT-STATE"]).findings
    assert [finding.cause for finding in findings] == ["resume-lost-state"]


def test_a_step_that_moves_nothing_lost_its_update() -> None:
    wrong = Way(updates=lambda step: step != 2)
    finding = first(Way(), wrong)
    assert (finding.cause, finding.step) == ("lost-update", 2)


def test_the_replica_that_computes_something_else_is_named() -> None:
    def of_the_second(weights: Any, batch: Any) -> Any:
        other_labels = 0 not in batch.ids and len(batch.ids) < 12
        return global_mean(weights, replace(batch, y=np.roll(batch.y, 1, axis=0)) if other_labels else batch)

    report = judged_with_slices(Way(), Way(computed=of_the_second), 2, checks=NUMERIC)
    assert report.findings[0].cause == "replica-computes-otherwise", str(report)
    assert "only replica 1 computes another gradient" in (report.findings[0].evidence or "")


def test_a_factor_of_each_replica_is_named() -> None:
    def weighted(weights: Any, batch: Any) -> Any:
        of_the_second = 0 not in batch.ids and len(batch.ids) == 6 and batch.replicas > 1
        return scaled(global_mean(weights, batch), 3.0 if of_the_second else 1.0)

    report = judged_with_slices(Way(), Way(computed=weighted), 2, checks=NUMERIC)
    assert report.findings[0].cause == "replica-computes-otherwise", str(report)
    assert "1 x on replica 0, 3 x on replica 1" in (report.findings[0].evidence or "")
