"""The forecast of made curves: the truth lies in the interval, and what costs the most is named."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_ddl.bench.forecasting.evidence import Link, Observation, Origin, Size, parse_link
from pytest_ddl.bench.forecasting.fitting import fit
from pytest_ddl.bench.forecasting.predicting import Point, forecast
from tests.bench.forecasting.curves import curve, evidence, seconds

pytest.importorskip("scipy")


def _holds(point: Point, truth: float) -> bool:
    return (point.low or math.inf) <= truth <= (point.high or 0)


@pytest.mark.parametrize("gradient", [0.0, 0.002, 0.02, 0.06])
def test_three_and_four_nodes_are_predicted_from_two(gradient: float) -> None:
    found = forecast(evidence(curve([1, 2], gradient=gradient)), [3, 4, 8])
    for point in found.points:
        assert _holds(point, seconds(point.size, gradient=gradient)), point
    for point in found.points[:2]:
        assert point.seconds == pytest.approx(seconds(point.size, gradient=gradient), rel=0.1)


def test_more_measurements_narrow_the_interval() -> None:
    few, many = (forecast(evidence(curve(counts, gradient=0.02)), [16]).points[0] for counts in ([1, 2], [1, 2, 4, 8]))
    assert None not in (few.low, few.high, many.low, many.high)
    assert many.high - many.low < few.high - few.low  # type: ignore[operator]


def test_an_interval_grows_with_the_distance() -> None:
    points = forecast(evidence(curve([1, 2], gradient=0.02)), [4, 8, 16, 32]).points
    widths = [(point.high or 0) / (point.low or 1) for point in points]
    assert widths == sorted(widths)


def test_equal_evidence_gives_equal_forecasts() -> None:
    given = evidence(curve([1, 2], gradient=0.02))
    assert forecast(given, [8]).as_json() == forecast(given, [8]).as_json()


def test_a_slow_link_binds_and_a_faster_one_helps() -> None:
    found = forecast(evidence(curve([1, 2], gradient=0.03)), [8])
    assert found.points[0].binding == "between"
    limit = found.limit
    assert limit is not None
    assert limit.replicas == 2
    assert limit.remedies["a link between nodes that is twice as fast"] > (limit.efficiency or 1) + 0.05


def test_a_program_that_scales_has_no_limit() -> None:
    limit = forecast(evidence(curve([1, 2])), [8]).limit
    assert limit is not None
    assert (limit.replicas, limit.largest) == (None, 32)


def test_waiting_binds_if_steps_vary() -> None:
    given = evidence(curve([1, 2], gradient=0.0), jitter=0.1)
    assert forecast(given, [16]).points[0].binding == "stragglers"


def test_the_fixed_cost_of_a_step_shows_when_the_global_batch_is_kept() -> None:
    law = {"fixed": 0.02, "gradient": 0.001}
    batches = tuple(Observation(Size(1, 1, batch), seconds(Size(1, 1, batch), **law)) for batch in (16.0, 64.0))
    given = evidence((*batches, *curve([2], batch=32, **law)))
    point = forecast(given, [8], strong=True).points[0]
    assert point.size == Size(8, 8, 8.0)
    truth = seconds(point.size, **law)
    assert _holds(point, truth)
    assert point.shares["fixed"] > point.shares["compute"]
    assert (point.efficiency_low or 1) <= seconds(Size(1, 1, 64), **law) / 8 / truth <= (point.efficiency_high or 0)


def test_gradients_are_reduced_once_for_each_update() -> None:
    law = {"gradient": 0.05}
    sizes = [Size(count, count, 8, accumulation) for count, accumulation in ((1, 8), (2, 8), (2, 1))]
    given = evidence(tuple(Observation(size, seconds(size, **law)) for size in sizes))
    target = Size(4, 4, 8, 4)
    assert forecast(given, [target]).points[0].seconds == pytest.approx(seconds(target, **law), rel=0.1)


def test_a_stated_link_stands_in_for_a_measured_one() -> None:
    within = curve([1, 2], per_node=2)
    given = evidence(within, per_node=2, gradient_bytes=50e6, between=Link("Ethernet", 1e9 / 0.7, origin=Origin.STATED))
    point = forecast(given, [8]).points[0]
    assert _holds(point, seconds(Size(8, 4, 64), gradient=0.05))


def test_measurements_that_no_draw_explains_widen_the_interval() -> None:
    smooth = curve([1, 2, 4, 8], gradient=0.01)
    torn = (smooth[0], replace(smooth[1], seconds=smooth[1].seconds * 1.3), *smooth[2:])
    assert fit(evidence(torn)).noise > 2 * fit(evidence(smooth)).noise


def test_a_point_survives_json() -> None:
    point = forecast(evidence(curve([1, 2])), [8]).points[0]
    assert Point.from_json(point.as_json()) == point
    assert point.throughput == pytest.approx(512 / (point.seconds or 0))


@pytest.mark.parametrize(
    ("text", "speed", "latency"),
    [
        ("25Gbit/s", 3.125e9, None),
        ("1.1 GB/s, 80us", 1.1e9, 80e-6),
        ("20 GbE (p2.16xlarge)", 2.5e9, None),
        ("200mbit/s,2ms", 25e6, 2e-3),
        ("InfiniBand", None, None),
        ('EC2 "high" (about 1 GbE class)', None, None),
    ],
)
def test_links_are_read(text: str, speed: float | None, latency: float | None) -> None:
    found = parse_link(text)
    assert (found.bytes_per_second, found.latency) == (pytest.approx(speed), pytest.approx(latency))
    assert found.origin is (Origin.STATED if speed else Origin.UNKNOWN)


def test_a_number_without_a_unit_is_no_link() -> None:
    with pytest.raises(ValueError, match="'25' is not a bandwidth: give a number and one of Gbit/s"):
        parse_link("25")


def test_a_program_without_measurements_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no measurement to start from"):
        evidence(())
    with pytest.raises(ValueError, match="must have positive numbers"):
        evidence((Observation(Size(1), 0.0),))
