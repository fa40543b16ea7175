"""Causes that look alike in a number: a planted cause is named, and its neighbor is not."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import (
    NAMES,
    Batch,
    Gradient,
    Way,
    added,
    apart,
    clipped_by_value,
    coupled,
    global_mean,
    judged_with_slices,
    local_mean,
    scaled,
    summed,
    train,
)

from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.probes import stale as stale_probe
from pytest_ddl.equivalence.probes.stale import stale_update
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import (
    GradientStage,
    LayoutRecord,
    ReductionRecord,
    StepRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)

NUMERIC = ["STEP-EQ", "OPT-STATE", "REPLICA-EQ", "MOVES", "ACCUM", "BATCH"]
SIZES = (12,) * 6


def judged(reference: TrainingRecord, distributed: TrainingRecord) -> Report:
    return judge(reference, distributed, checks=NUMERIC)


def first(right: Way, wrong: Way, replicas: int = 2) -> Finding:
    return judged(train(right, 1), train(wrong, replicas)).findings[0]


def with_steps(record: TrainingRecord, change: Any) -> TrainingRecord:
    """The record with every step of every rank changed."""
    ranks = tuple(replace(rank, steps=tuple(change(rank, step) for step in rank.steps)) for rank in record.ranks)
    return replace(record, ranks=ranks)


def with_variables(record: TrainingRecord, change: Any) -> TrainingRecord:
    ranks = tuple(replace(rank, variables=tuple(map(change, rank.variables))) for rank in record.ranks)
    return replace(record, ranks=ranks)


@pytest.mark.parametrize("replicas", [2, 4])
def test_elements_that_are_not_reduced(replicas: int) -> None:
    """The last elements of a pack are not reduced."""

    def tail(parts: Sequence[Any]) -> list[Any]:
        return [
            {**whole, "kernel": np.concatenate([whole["kernel"][:3], part["kernel"][3:]])}
            for whole, part in zip(summed(parts), parts, strict=True)
        ]

    finding = first(Way(rule="hand"), Way(rule="hand", reduced=tail), replicas)
    assert finding.cause == "gradient-not-aggregated"
    assert "6 of 15 elements of kernel" in (finding.evidence or "")


def test_a_term_that_is_not_reduced() -> None:
    """A tied weight: the program reduced one of two terms, which its reductions show."""
    early = [np.random.default_rng(replica).normal(size=(5, 3)) for replica in range(2)]

    def late(parts: Sequence[Any]) -> list[Any]:
        return [
            {**whole, "kernel": sum(early) + part["kernel"] - mine}
            for whole, part, mine in zip(summed(parts), parts, early, strict=True)
        ]

    def reductions(rank: Any, step: StepRecord) -> StepRecord:
        told = [ReductionRecord(r, 0, "SUM", "float64", early[r], sum(early)) for r in rank.replicas]  # type: ignore[arg-type]
        return replace(step, reductions=tuple(told))

    reference, distributed = train(Way(rule="hand"), 1), train(Way(rule="hand", reduced=late), 2)
    assert judged(reference, distributed).findings[0].cause == "replicas-diverged"
    finding = judged(reference, with_steps(distributed, reductions)).findings[0]
    assert finding.cause == "gradient-not-aggregated"
    assert "a term of kernel" in (finding.evidence or "")


def test_replicas_that_go_apart_have_no_penalty() -> None:
    """Replica 1 adds what is parallel to the weights: a penalty would be the same on all replicas."""

    def added_by_one(parts: Sequence[Any]) -> list[Any]:
        whole = summed(parts)
        whole[1] = {**whole[1], "kernel": whole[1]["kernel"] + 0.1}
        return whole

    flat = Way(rule="hand", computed=lambda w, b: {**global_mean(w, b)})
    assert first(flat, replace(flat, reduced=added_by_one)).cause == "replicas-diverged"


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_limit_that_grows(factor: float) -> None:
    def by(limit: float) -> Any:
        return lambda parts: [clipped_by_value(limit, whole) for whole in summed(parts)]

    right, wrong = Way(rule="hand", reduced=by(0.3)), Way(rule="hand", reduced=by(0.3 * factor))

    def reductions(rank: Any, step: StepRecord) -> StepRecord:
        of = [g for g in step.gradients if g.stage is GradientStage.COMPUTED]
        whole = sum(np.asarray(g.values[0]) for g in of)
        told = [ReductionRecord(g.replica, 0, "SUM", "float64", g.values[0], whole) for g in of]  # type: ignore[arg-type]
        return replace(step, reductions=tuple(told))

    finding = judged(train(right, 1), with_steps(train(wrong, 2), reductions)).findings[0]
    assert finding.cause == "clipping-lost"
    assert f"{factor:.4g} times the limit" in (finding.evidence or "")


@pytest.mark.parametrize(("factor", "cause"), [(1 / 128, "gradient-unscaled-without-scale"), (1 / 100, None)])
def test_loss_scale_on_one_side_only(factor: float, cause: str | None) -> None:
    def less(parts: Sequence[Any]) -> list[Any]:
        return [scaled(whole, factor) for whole in summed(parts)]

    assert first(Way(rule="hand"), Way(rule="hand", reduced=less)).cause == cause
    assert first(Way(), Way(computed=local_mean)).cause == "gradient-scaled-by-replica-count"


def test_a_factor_may_be_an_axis_of_the_mesh() -> None:
    layout = LayoutRecord(None, ("unsharded",), (5, 3), {"batch": 3, "model": 2})
    reference = train(Way(), 1)
    tripled = train(Way(reduced=lambda parts: [scaled(whole, 3.0) for whole in summed(parts)]), 1)
    assert judged(reference, tripled).findings[0].cause is None
    on_mesh = with_variables(tripled, lambda v: replace(v, layout=layout))
    assert judged(reference, on_mesh).findings[0].cause == "gradient-scaled-by-replica-count"


def test_momentum_that_is_wrong_while_the_weights_are_right() -> None:
    way = Way(momentum=0.9)
    distributed = train(way, 2)
    slots = {v.index for v in distributed.variables if v.kind is VariableKind.SLOT}

    def halved(_rank: Any, step: StepRecord) -> StepRecord:
        values = {i: tuple(v / 2 for v in parts) if i in slots else parts for i, parts in step.snapshot.items()}
        return replace(step, snapshot=values)

    finding = judged(train(way, 1), with_steps(distributed, halved)).findings[0]
    assert (finding.check, finding.cause) == ("OPT-STATE", "optimizer-state-mismatch")


def frozen(record: TrainingRecord, *names: str, **facts: Any) -> TrainingRecord:
    def change(variable: VariableRecord) -> VariableRecord:
        return replace(variable, kind=VariableKind.FROZEN) if variable.name in names else variable

    changed = with_variables(record, change)
    return replace(changed, ranks=tuple(replace(rank, facts=facts) for rank in changed.ranks))


def test_frozen_weights_that_are_updated_on_one_device_too() -> None:
    reference, distributed = (frozen(train(Way(), n), "table") for n in (1, 2))
    finding = judged(reference, distributed).findings[0]
    assert (finding.check, finding.cause, finding.variable) == ("MOVES", "frozen-variable-moved", "table")


def test_weights_that_thaw_or_have_an_update_of_their_own_may_move() -> None:
    reference, distributed = (frozen(train(Way(), n), "table", thawed=[NAMES.index("table")]) for n in (1, 2))
    assert judged(reference, distributed).passed

    def own_call(_rank: Any, step: StepRecord) -> StepRecord:
        split = [
            replace(g, call=call, values={i: v for i, v in g.values.items() if (i == 2) is bool(call)})
            for g in step.gradients
            for call in (0, 1)
        ]
        return replace(step, gradients=tuple(split))

    pair = [with_steps(frozen(train(Way(), n), "table"), own_call) for n in (1, 2)]
    assert judged(*pair).passed


def test_weights_that_one_device_does_not_train() -> None:
    finding = first(
        Way(skipped=("table",), computed=lambda w, b: {n: g for n, g in global_mean(w, b).items() if n != "table"},
            handed=lambda parts, _s: [{**p, "table": np.zeros((6, 2))} for p in parts]),
        Way(),
    )  # fmt: skip
    assert finding.cause == "frozen-variable-moved"


def _accumulated(parts: Sequence[Any], step: int, sums: list[Any], owners: Sequence[int], keep: Sequence[int]) -> Any:
    if step == 1:
        sums[:] = [added([]) for _ in parts]
    for replica, part in enumerate(parts):
        sums[replica] = added([sums[replica], part]) if replica in owners else sums[replica]
    if step % 2:
        return [added([]) for _ in parts]
    handed = [scaled(total, 0.5) for total in sums]
    sums[:] = [total if replica in keep else added([]) for replica, total in enumerate(sums)]
    return handed


@pytest.mark.parametrize(
    ("owners", "keep", "cause"),
    [((0, 1), (), None), ((0,), (), "leaves out what replica 1"), ((0, 1), (1,), "again on replica 1")],
)
def test_accumulators_of_single_replicas(owners: Sequence[int], keep: Sequence[int], cause: str | None) -> None:
    def way(owners: Sequence[int], keep: Sequence[int], **fields: Any) -> Way:
        sums: list[Any] = []
        handed = lambda parts, step: _accumulated(parts, step, sums, owners, keep)  # noqa: E731
        return Way(sizes=SIZES, handed=handed, rule="hand", rate=lambda _step: 0.05, **fields)

    report = judged(train(way((0, 1), ()), 1), train(way(owners, keep), 2))
    if cause is None:
        assert report.passed, str(report)
    else:
        assert report.findings[0].cause == "gradient-accumulation-wrong"
        assert cause in report.findings[0].message


def test_rows_of_replicas_that_overwrite_each_other() -> None:
    def last_wins(parts: Sequence[Any]) -> list[Any]:
        table = np.zeros((6, 2))
        for part in parts:
            rows = np.any(part["table"] != 0, axis=1)
            table[rows] = part["table"][rows]
        return [{**whole, "table": table} for whole in summed(parts)]

    finding = first(Way(sparse=True), Way(sparse=True, reduced=last_wins))
    assert finding.cause == "sparse-gradient-mismatch"
    assert "one of them" in (finding.evidence or "")


def test_gradients_of_more_calls_do_not_tell_a_coupled_loss() -> None:
    """The same batch through two calls: the second sees other weights."""
    right, wrong = Way(rule="hand", computed=coupled), Way(rule="hand", computed=coupled)
    assert judged_with_slices(right, wrong, 2, checks=NUMERIC).findings[0].cause == "batch-coupled-loss"

    def twice(_rank: Any, step: StepRecord) -> StepRecord:
        again = tuple(replace(g, call=1, values=dict.fromkeys(g.values)) for g in step.gradients)
        return replace(step, gradients=(*step.gradients, *again))

    report = judged(train(right, 1), with_steps(train(wrong, 2), twice))
    assert report.findings[0].cause != "batch-coupled-loss"


def test_a_batch_that_is_used_twice_is_one_batch() -> None:
    def known(_rank: Any, step: StepRecord) -> StepRecord:
        batches = tuple(replace(b, fingerprints=tuple(int(i) for i in b.example_ids or ())) for b in step.batches)
        return replace(step, batches=batches)

    def twice(_rank: Any, step: StepRecord) -> StepRecord:
        return replace(step, batches=tuple(b for batch in step.batches for b in (batch, batch)))

    reference, distributed = (with_steps(train(Way(), n), known) for n in (1, 2))
    assert judged(reference, with_steps(distributed, twice)).passed
    finding = judged(reference, with_steps(train(Way(), 2), twice)).findings[0]
    assert finding.cause == "global-batch-wrong"


def test_parts_that_stay_apart_are_still_not_aggregated() -> None:
    assert first(Way(rule="hand"), Way(rule="hand", reduced=apart)).cause == "gradient-not-aggregated"


@pytest.mark.parametrize("rule", [{"rule": "hand"}, {}, {"momentum": 0.9}, {"rule": "Adam"}])
def test_gradients_of_older_weights(rule: dict[str, Any]) -> None:
    """Every step takes its gradient at the first weights; the held run begins every step with them."""
    right = Way(**rule)
    reference = train(right, 1)
    start = {name: np.asarray(reference.value(NAMES.index(name), 0)) for name in NAMES}
    stale = replace(right, computed=lambda _weights, batch: global_mean(start, batch))
    distributed = train(stale, 2)
    alone = train(stale, 1)

    def set_back(rank: Any, step: StepRecord) -> StepRecord:
        before = rank.steps[step.index - 2].snapshot if step.index > 1 else rank.initial
        moved = {i: (rank.initial[i][0] + step.snapshot[i][0] - before[i][0],) for i in range(len(NAMES))}
        return replace(step, snapshot={**step.snapshot, **moved})

    held = with_steps(alone, set_back)
    found = stale_update(reference, distributed, held, 0, 2)
    assert found is not None
    assert (found.cause, found.step) == ("staleness-exceeded", 2)
    assert stale_update(reference, train(right, 2), held, 0, 2) is None
    assert stale_update(reference, train(replace(right, reduced=apart), 2), held, 0, 2) is None
    assert stale_update(reference, distributed, held, 0, 9) is None


def test_unexplained_differences_ask_for_older_weights() -> None:
    def odd(parts: Sequence[Any]) -> list[Any]:
        return [{name: value**3 for name, value in whole.items()} for whole in summed(parts)]

    late = Way(rule="hand", reduced=lambda parts: odd(parts) if parts[0]["bias"][0] < 0 else summed(parts))
    found = judged(train(Way(rule="hand"), 1), train(Way(rule="hand", reduced=odd), 2))
    assert found.findings[0].step == 1
    assert not stale_probe.wanted(found, ())
    report = judged(train(Way(rule="hand"), 1), train(late, 2))
    step = report.findings[0].step if report.findings else None
    assert stale_probe.wanted(report, ()) is (step is not None and step > 1)


def test_gradients_that_each_replica_normalizes() -> None:
    """Per variable, by a rate that its own norm sets: no limit and no rate is known."""

    def normalized(gradient: Any) -> Any:
        return {name: value / np.linalg.norm(value) for name, value in gradient.items()}

    right = Way(rule="hand", reduced=lambda parts: [normalized(whole) for whole in summed(parts)])
    wrong = Way(rule="hand", reduced=lambda parts: summed([normalized(part) for part in parts]))
    assert first(right, wrong).cause == "gradient-clipped-before-aggregation"


def coupled_in_full(weights: Gradient, batch: Batch) -> Gradient:
    """The loss of a batch is one number, which no replica divides by the number of replicas."""
    return scaled(coupled(weights, batch), batch.total / max(len(batch.ids), 1))


@pytest.mark.parametrize(("computed", "in_full"), [(coupled, False), (coupled_in_full, True)])
@pytest.mark.parametrize("within_fit", [False, True])
def test_a_coupled_loss_that_counts_in_full_is_both(computed: Any, in_full: bool, within_fit: bool) -> None:
    def shown_by_fit(_rank: Any, step: StepRecord) -> StepRecord:
        return replace(step, values={RUNNING_MEAN: 1.0}) if within_fit else step

    way = Way(computed=computed)
    recorded = functools.partial(with_steps, change=shown_by_fit)
    finding = judged_with_slices(way, way, 2, recorded=recorded, checks=NUMERIC).findings[0]
    assert (finding.cause, finding.exact) == ("batch-coupled-loss", False)
    assert ("2 times too large" in str(finding.evidence)) is in_full
    assert finding.besides == (("gradient-scaled-by-replica-count",) if in_full else ())
    assert "divide the loss of the whole batch by their number" in str(finding.fix)
