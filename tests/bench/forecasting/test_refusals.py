"""Each reason to refuse a forecast applies to the cases that it describes, and to no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Link, Origin, Size
from pytest_ddl.bench.forecasting.predicting import forecast
from pytest_ddl.bench.forecasting.refusals import REFUSALS, refusal, warnings
from tests.bench.forecasting.curves import curve, evidence

LINKED: dict[str, Any] = {"between": Link("Ethernet", 1e9, origin=Origin.STATED), "gradient_bytes": 1e6}
STATED = Link("Ethernet", 1e9, origin=Origin.STATED)
INSIDE = evidence(curve([1, 2], per_node=2), per_node=2)
ACROSS = evidence(curve([1, 2]))


def _slow_baseline() -> ForecastEvidence:
    one, two = curve([1, 2])
    return evidence((replace(one, seconds=1.1 * one.seconds), two))


CASES = [
    (replace(ACROSS, shares_cores="they shared"), ACROSS, Size(4, 4, 64), "they shared: their times say nothing"),
    (_slow_baseline(), ACROSS, Size(4, 4, 64), "2 replicas were 1.10 times as fast as ideal"),
    (ACROSS, evidence(curve([1, 4])), Size(64, 64, 64), "64 replicas are more than 16 times the 2"),
    (INSIDE, replace(INSIDE, **LINKED), Size(4, 2, 64), "their link was neither measured nor stated"),
    (replace(INSIDE, between=STATED), replace(INSIDE, **LINKED), Size(4, 2, 64), "the bytes of the gradients and"),
    (ACROSS, ACROSS, Size(4, 4, 0.5), "4 replicas would have 0.5 examples each"),
    (INSIDE, evidence(curve([1, 4], per_node=2), per_node=2), Size(8, 4, 64), "their link was neither"),
    (
        evidence(curve([1]), per_node=2),
        evidence(curve([1]), per_node=2, within=Link("NVLink")),
        Size(2, 1, 64),
        "no two replicas of one node were measured",
    ),
    (
        replace(ACROSS, servers=0, **LINKED),
        replace(ACROSS, servers=2, **LINKED),
        Size(4, 4, 64),
        "parameter servers saturate",
    ),
]


@pytest.mark.parametrize(("refused", "allowed", "size", "words"), CASES)
def test_a_size_is_refused_for_its_reason_alone(
    refused: ForecastEvidence, allowed: ForecastEvidence, size: Size, words: str
) -> None:
    assert words in refusal(refused, size)
    assert refusal(allowed, replace(size, batch_per_replica=max(1, size.batch_per_replica or 1))) == ""


def test_each_reason_has_a_case() -> None:
    first = {next(check for check in REFUSALS if check(refused, size)) for refused, _allowed, size, _words in CASES}
    assert first == set(REFUSALS)


def test_noise_of_a_measurement_is_no_wrong_baseline() -> None:
    one, two = curve([1, 2])
    assert refusal(evidence((replace(one, seconds=1.02 * one.seconds), two)), Size(4, 4, 64)) == ""


def test_a_refused_size_has_its_reason_and_no_number() -> None:
    pytest.importorskip("scipy")
    point = forecast(INSIDE, [4]).points[0]
    assert (point.seconds, point.efficiency, point.shares) == (None, None, {})
    assert "link" in point.refused


def test_what_was_guessed_is_said() -> None:
    guessed = [str(one) for one in warnings(replace(INSIDE, jitter=None, between=STATED))]
    assert [text.partition(":")[0] for text in guessed] == [
        "the fixed cost of a step was not separated from that of its examples",
        "waiting for the slowest replica is a guess",
        "the link between nodes is stated and was not measured",
        "the bytes of the gradients are not known",
    ]
    full = evidence((*curve([1], batch=32), *curve([1, 2])), gradient_bytes=1e6)
    assert list(warnings(full)) == []
