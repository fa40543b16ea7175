"""Causes by recomputation from gradients: a planted cause is named, and similar causes are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import (
    NAMES,
    Way,
    apart,
    averaged,
    clipped_by_norm,
    clipped_by_value,
    clipped_globally,
    coupled,
    global_mean,
    judged_with_slices,
    local_mean,
    masked,
    masked_locally,
    mean_of_means,
    of_the_first,
    scaled,
    summed,
    train,
)

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import LayerRecord

NUMERIC = ["STEP-EQ", "UNEVEN-EQ", "OPT-STATE", "REPLICA-EQ", "MOVES"]
CLIPPERS = {"clipnorm": clipped_by_norm, "global_clipnorm": clipped_globally, "clipvalue": clipped_by_value}
UNEVEN = (13, 13, 13)


def compared(right: Way, wrong: Way, replicas: int = 2, workers: int = 1) -> Report:
    return judged_with_slices(right, wrong, replicas, workers, checks=NUMERIC)


def first(report: Report) -> Finding:
    return (report.findings or list(report.approximations))[0]


def _clip(clipper: Any, limit: float, stage: str = "reduced") -> dict[str, Any]:
    """A right clipping: after the sum."""
    return {stage: lambda parts: [clipper(limit, whole) for whole in summed(parts)]}


def _clip_parts(clipper: Any, limit: float, join: Any = summed) -> dict[str, Any]:
    return {"reduced": lambda parts: join([clipper(limit, part) for part in parts])}


def _by_hand_before(clipper: Any, limit: float) -> dict[str, Any]:
    return {"handed": lambda parts, _step: [clipper(limit, part) for part in parts]}


def _mixed_rows(parts: Any) -> Any:
    """Values of each replica's rows are added position by position, and land in the first replica's rows."""
    table = np.zeros_like(parts[0]["table"])
    rows = [np.flatnonzero(np.any(part["table"] != 0, axis=1)) for part in parts]
    for part, own in zip(parts, rows, strict=True):
        for position, row in enumerate(own):
            table[rows[0][position % len(rows[0])]] += part["table"][row]
    return [{**whole, "table": table} for whole in summed(parts)]


def _only(names: tuple[str, ...], odd: Any, rest: Any = summed) -> Any:
    def reduced(parts: Any) -> Any:
        return [
            {name: (strange if name in names else right)[name] for name in NAMES}
            for strange, right in zip(odd(parts), rest(parts), strict=True)
        ]

    return reduced


def _doubled(parts: Any) -> Any:
    return [scaled(whole, len(parts)) for whole in summed(parts)]


def _halved(parts: Any) -> Any:
    return [scaled(whole, 1 / len(parts)) for whole in summed(parts)]


RULES = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"rule": "Adam"},
    "by hand": {"rule": "hand"},
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("sizes", [(12, 12, 12), UNEVEN, (12, 9, 5)], ids=str)
def test_right_ways_pass(rule: dict[str, Any], replicas: int, sizes: tuple[int, ...]) -> None:
    way = Way(sizes=sizes, **rule)
    assert compared(way, way, replicas).verdict == "pass"
    assert compared(replace(way, computed=masked), replace(way, computed=masked), replicas).verdict == "pass"


PLANTED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("mean per replica", "gradient-scaled-by-replica-count", {}, {"computed": local_mean}),
    ("reduced twice", "gradient-scaled-by-replica-count", {}, {"reduced": _doubled}),
    ("averaged", "gradient-scaled-by-inverse-replica-count", {}, {"reduced": averaged}),
    ("a variable reduced twice", "gradient-scaled-by-replica-count", {}, {"reduced": _only(("kernel",), _doubled)}),
    ("kept apart", "gradient-not-aggregated", {}, {"computed": local_mean, "reduced": apart}),
    ("kept apart, global mean", "gradient-not-aggregated", {}, {"reduced": apart}),
    ("one variable apart", "gradient-not-aggregated", {}, {"reduced": _only(("bias",), apart)}),
    ("first replica's", "gradient-not-aggregated", {}, {"computed": local_mean, "reduced": of_the_first}),
    ("first's for a variable", "gradient-not-aggregated", {}, {"reduced": _only(("kernel",), of_the_first)}),
    ("masked mean per replica", "masked-loss-normalised-per-replica", {"computed": masked},
     {"computed": masked_locally, "reduced": averaged}),
    ("masked mean, summed", "gradient-scaled-by-replica-count", {"computed": masked}, {"computed": masked_locally}),
    ("mean of means", "mean-of-replica-means", {"sizes": UNEVEN}, {"computed": mean_of_means}),
    ("means averaged", "mean-of-replica-means", {"sizes": UNEVEN}, {"computed": local_mean, "reduced": averaged}),
    ("means summed", "gradient-scaled-by-replica-count", {"sizes": UNEVEN}, {"computed": local_mean}),
    ("coupled", "batch-coupled-loss", {"computed": coupled}, {}),
    ("rows mixed", "sparse-gradient-mismatch", {"sparse": True}, {"reduced": _mixed_rows}),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("title", "cause", "program", "sin"), PLANTED, ids=[row[0] for row in PLANTED])
def test_cause_is_recomputed_behind_any_optimizer(
    title: str, cause: str, program: dict[str, Any], sin: dict[str, Any], rule: dict[str, Any]
) -> None:
    report = compared(Way(**program, **rule), Way(**{**program, **rule, **sin}))
    assert first(report).cause == cause, str(report)
    # Examples that a replica leaves out change its gradient like a coupled loss.
    assert first(report).exact == (cause != "batch-coupled-loss")
    assert not first(report).also
    assert first(report).approximation == (cause == "mean-of-replica-means")


@pytest.mark.parametrize(("title", "cause", "program", "sin"), PLANTED, ids=[row[0] for row in PLANTED])
def test_cause_is_recomputed_on_four_replicas(
    title: str, cause: str, program: dict[str, Any], sin: dict[str, Any]
) -> None:
    sizes = {"sizes": (14, 14)} if "sizes" in program else {}
    report = compared(Way(**{**program, **sizes}), Way(**{**program, **sin, **sizes}), replicas=4)
    assert first(report).cause == cause, str(report)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_first_wrong_step_may_be_a_later_one(rule: dict[str, Any]) -> None:
    seen: list[int] = []

    def later(parts: Any) -> Any:
        seen.append(1)
        return _doubled(parts) if len(seen) > 2 else summed(parts)

    finding = first(compared(Way(**rule), Way(reduced=later, **rule)))
    assert (finding.cause, finding.step) == ("gradient-scaled-by-replica-count", 3)


def test_sum_within_workers_only() -> None:
    def within(parts: Any) -> Any:
        return [*summed(parts[:2]), *summed(parts[2:])]

    finding = first(compared(Way(), Way(reduced=within), replicas=4, workers=2))
    assert finding.cause == "gradient-not-aggregated"


@pytest.mark.parametrize("kind", CLIPPERS)
@pytest.mark.parametrize("limit", [0.05, 0.6])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_clipping_by_the_optimizer(kind: str, limit: float, rule: str) -> None:
    clipper, program = CLIPPERS[kind], {"settings": {kind: limit}, **RULES[rule]}
    right = Way(**program, **_clip(clipper, limit))
    assert compared(right, right).verdict == "pass"
    before = first(compared(right, Way(**program, **_clip_parts(clipper, limit))))
    assert before.cause == "gradient-clipped-before-aggregation"
    assert before.exact
    lost = first(compared(right, Way(**program)))
    assert lost.cause == "clipping-lost"
    assert lost.exact


@pytest.mark.parametrize("kind", CLIPPERS)
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_clipping_by_the_program(kind: str, rule: str) -> None:
    clipper, limit = CLIPPERS[kind], 0.3
    right = Way(handed=lambda parts, _step: [clipper(limit, part) for part in parts], **RULES[rule])
    wrong = [
        {"handed": right.handed},
        {"computed": local_mean, "handed": right.handed, "reduced": averaged},
    ]
    for sin in wrong:
        finding = first(compared(right, Way(**{**RULES[rule], **sin})))
        assert finding.cause == "gradient-clipped-before-aggregation", (kind, sin)
        assert finding.exact


def test_limit_for_another_size() -> None:
    limit = 0.3
    right = Way(**_clip(clipped_globally, limit), settings={"global_clipnorm": limit})

    def shrunk(parts: Any) -> Any:
        return [scaled(clipped_globally(limit, scaled(whole, 0.5)), 2.0) for whole in summed(parts)]

    finding = first(compared(right, replace(right, reduced=shrunk)))
    assert finding.cause == "gradient-clipped-before-aggregation"
    assert "scaled back" in (finding.evidence or "")


def test_scale_behind_clipping() -> None:
    limit = 100.0
    right = Way(**_clip(clipped_globally, limit), settings={"global_clipnorm": limit})
    finding = first(compared(right, replace(right, computed=local_mean)))
    assert finding.cause == "gradient-scaled-by-replica-count"


@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_regularization(penalty: str, rule: dict[str, Any]) -> None:
    def with_penalty(share: float) -> Any:
        def computed(weights: Any, batch: Any) -> Any:
            data = global_mean(weights, batch)
            slope = weights["kernel"] if penalty == "l2" else np.sign(weights["kernel"])
            return {**data, "kernel": data["kernel"] + (share or 1 / batch.replicas) * 0.3 * slope}

        return computed

    right = Way(computed=with_penalty(0.0), **rule)
    assert compared(right, right).verdict == "pass"
    finding = first(compared(right, Way(computed=with_penalty(1.0), **rule)))
    assert finding.cause == "regularization-scaled-by-replica-count"


def test_a_penalty_of_another_kind_is_recognized_by_where_it_acts() -> None:
    layers = (LayerRecord("kernel", "Dense", {"kernel_regularizer": {"type": "OrthogonalRegularizer"}}),)

    def computed(share: float) -> Any:
        def gradient(weights: Any, batch: Any) -> Any:
            data, w = global_mean(weights, batch), weights["kernel"]
            return {**data, "kernel": data["kernel"] + share * 0.1 * w @ (w.T @ w)}

        return gradient

    finding = first(compared(Way(computed=computed(1.0), layers=layers), Way(computed=computed(0.8), layers=layers)))
    assert finding.cause == "regularization-scaled-by-replica-count"
    assert not finding.exact


def test_learning_rate_multiplied_by_the_number_of_replicas() -> None:
    for rule in (RULES["sgd"], RULES["adam"]):
        finding = first(compared(Way(**rule), Way(rate=lambda _step: 0.2, **rule)))
        assert finding.cause == "learning-rate-differs"


def test_optimizer_that_spoils_right_gradients() -> None:
    record = train(Way(momentum=0.9), 2)
    wrong = train(Way(momentum=0.9, settings={}, reduced=lambda parts: [scaled(g, 1.37) for g in summed(parts)]), 2)
    report = judge(train(Way(momentum=0.9), 1), wrong, checks=NUMERIC)
    assert first(report).cause == "optimizer-state-mismatch"
    assert not first(report).exact
    assert judge(train(Way(momentum=0.9), 1), record, checks=NUMERIC).verdict == "pass"


def test_equal_replicas_leave_two_causes() -> None:
    def alike(weights: Any, batch: Any) -> Any:
        return {name: np.ones_like(value) * 0.5 / batch.replicas for name, value in weights.items()}

    report = compared(Way(computed=alike), Way(computed=alike, reduced=apart))
    finding = first(report)
    named = {finding.cause, *finding.also}
    assert {"gradient-scaled-by-inverse-replica-count", "gradient-not-aggregated"} <= named


def test_without_recorded_gradients_less_is_certain() -> None:
    blind = {"record": False}
    report = compared(Way(computed=masked, **blind), Way(computed=masked_locally, reduced=averaged, **blind))
    assert first(report).cause is None
    report = compared(Way(rule="Adam", **blind), Way(rule="Adam", computed=local_mean, **blind))
    assert first(report).cause == "gradient-scaled-by-replica-count"


def test_unknown_stays_unknown() -> None:
    def odd(parts: Any) -> Any:
        return [{name: value**3 for name, value in whole.items()} for whole in summed(parts)]

    assert first(compared(Way(rule="hand"), Way(rule="hand", reduced=odd))).cause is None


def test_sum_beyond_half_precision() -> None:
    def large(weights: Any, batch: Any) -> Any:
        return {**global_mean(weights, batch), "bias": np.full(3, 50000.0)}

    def cast(parts: Any) -> Any:
        with np.errstate(over="ignore"):
            bias = np.sum([part["bias"].astype(np.float16) for part in parts], axis=0, dtype=np.float16)
        return [{**whole, "bias": bias.astype(float) / len(parts)} for whole in summed(parts)]

    way = Way(computed=large, rate=lambda _step: 1e-6, sizes=(12,))
    report = compared(replace(way, reduced=averaged), replace(way, reduced=cast))
    assert first(report).cause == "reduction-overflow"


@pytest.mark.parametrize("join", [summed, averaged], ids=["sum", "mean"])
@pytest.mark.parametrize("clipper", [clipped_by_norm, clipped_globally])
def test_normalized_on_each_replica_by_hand(clipper: Any, join: Any) -> None:
    right = Way(rule="hand", **_clip(clipper, 1e-3))
    wrong = Way(rule="hand", **_clip_parts(clipper, 1e-3, join))
    assert compared(right, right).verdict == "pass"
    finding = first(compared(right, wrong))
    assert finding.cause == "gradient-clipped-before-aggregation", finding.evidence


def test_a_factor_of_each_step_is_no_limit() -> None:
    """Both runs divide by a number that grows. In one step, this looks like a limit on the norm of one device."""

    def divided(growth: float) -> Way:
        return Way(handed=lambda parts, step: [scaled(part, 1 / (1 + growth * step)) for part in parts])

    finding = first(compared(divided(0.3), divided(0.2)))
    named = {finding.cause, *finding.also}
    assert not named & {"gradient-clipped-before-aggregation", "clipping-lost"}, finding.evidence


def test_rows_are_not_mixed_if_each_is_that_of_the_sum() -> None:
    def penalised(weights: Any, batch: Any) -> Any:
        found, used = global_mean(weights, batch), np.unique(batch.words).astype(int)
        found["table"][used] += weights["table"][used] / batch.replicas
        return found

    way = Way(sparse=True, computed=penalised)
    assert first(compared(way, way)).cause != "sparse-gradient-mismatch"


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_numbers_that_every_replica_adds_to_its_gradient(rule: str, replicas: int) -> None:
    def noisy(parts: Any, _step: int) -> Any:
        draw = np.random.default_rng(5)
        noise = {name: 0.3 * draw.normal(size=parts[0][name].shape) for name in NAMES}
        return [{name: part[name] + noise[name] for name in NAMES} for part in parts]

    way = Way(rule=rule, handed=noisy)
    finding = first(compared(way, way, replicas))
    assert finding.cause == "term-added-by-every-replica", finding.evidence


def test_a_whole_gradient_times_a_number_of_each_replica() -> None:
    def weighted(parts: Any, _step: int) -> Any:
        whole = summed(parts)[0]
        weights = np.linspace(0.5, 1.5, len(parts)) if len(parts) > 1 else [1.0]
        return [scaled(whole, float(weight) / len(parts) ** 2) for weight in weights]

    way = Way(handed=weighted)
    finding = first(compared(way, way))
    assert finding.cause == "gradient-scaled-by-inverse-replica-count", finding.evidence
    assert str(finding.fix) == SPECIAL["factors-of-parts"]
