"""The forecast of made curves: the truth lies in the interval, and what costs the most is named."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_ddl.bench.forecasting.evidence import Link, Observation, Origin, Size, named_link, parse_link
from pytest_ddl.bench.forecasting.model import fit
from pytest_ddl.bench.forecasting.predicting import ForecastPoint, forecast
from tests.bench.forecasting.curves import curve, evidence, seconds

pytest.importorskip("scipy")


def _holds(point: ForecastPoint, truth: float) -> bool:
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
    link = Link("NVLink", origin=Origin.ASSUMED)
    given = evidence(curve([1], per_node=16), per_node=16, jitter=0.2, gradient_bytes=1e3, within=link)
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
    torn = (smooth[0], replace(smooth[1], seconds=smooth[1].seconds * 1.15), *smooth[2:])
    assert fit(evidence(torn)).noise > 1.5 * fit(evidence(smooth)).noise


def test_measurements_that_contradict_each_other_are_refused() -> None:
    one, two = curve([1, 2], gradient=0.01)
    torn = evidence((one, replace(two, seconds=1000 * two.seconds)))
    refused = forecast(torn, [4]).points[0].refused
    assert "the measured times contradict each other" in refused
    assert "on a calm machine" in refused


def test_a_point_survives_json() -> None:
    point = forecast(evidence(curve([1, 2])), [8]).points[0]
    assert ForecastPoint.from_json(point.as_json()) == point
    assert point.throughput == pytest.approx(512 / (point.seconds or 0))


@pytest.mark.parametrize(
    ("text", "speed", "latency"),
    [
        ("25Gbit/s", 3.125e9, None),
        ("25Gb/s", 3.125e9, None),
        ("25GB/s", 25e9, None),
        ("1.1 GB/s, 80us", 1.1e9, 80e-6),
        ("200Mbps,2ms", 25e6, 2e-3),
    ],
)
def test_a_stated_link_is_read(text: str, speed: float, latency: float | None) -> None:
    found = parse_link(text)
    assert (found.bytes_per_second, found.latency) == (pytest.approx(speed), pytest.approx(latency))
    assert found.origin is Origin.STATED


@pytest.mark.parametrize(
    "text", ["25", "1e3Gbit/s", "-25Gbit/s", "2x100Gbit/s", "25Gbit/s,5s", "25gb/s", "0Gbit/s", "1,000Gbit/s", "fast"]
)
def test_a_link_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a bandwidth such as 25Gbit/s"):
        parse_link(text)


@pytest.mark.parametrize(
    ("text", "speed"),
    [("20 GbE (p2.16xlarge)", 2.5e9), ("InfiniBand", None), ('EC2 "high" (about 1 GbE class)', None), ("0 GbE", None)],
)
def test_a_link_of_a_table_may_have_a_number(text: str, speed: float | None) -> None:
    found = named_link(text)
    assert (found.kind, found.bytes_per_second) == (text, pytest.approx(speed))
    assert found.origin is (Origin.STATED if speed else Origin.UNKNOWN)


def test_a_stated_link_matters() -> None:
    given = evidence(curve([1, 2], per_node=2), per_node=2, gradient_bytes=50e6)
    slow, fast = (
        forecast(replace(given, between=parse_link(text)), [8]).points[0].seconds or 0
        for text in ("1Gbit/s", "100Gbit/s")
    )
    assert slow > 4 * fast


def test_the_latency_of_the_network_does_not_count_within_a_node() -> None:
    given = evidence(curve([1, 2], per_node=8), per_node=8, gradient_bytes=1e6, collectives=10)
    near, far = (
        forecast(replace(given, between=parse_link(text)), [8]).points[0].seconds for text in ("1Gbit/s", "1Gbit/s,5ms")
    )
    assert near == far


def test_servers_are_never_faster_than_their_links() -> None:
    # Each worker sends and receives 100 MB at 1 GB/s, and all go through one server.
    times = tuple(Observation(Size(count, count, 64), 0.2 * count) for count in (1, 2))
    link = Link("Ethernet", 1e9 / 0.7, origin=Origin.STATED)
    given = evidence(times, gradient_bytes=100e6, servers=1, between=link)
    point = forecast(given, [16]).points[0]
    assert _holds(point, 3.2)
    assert point.binding == "between"


def test_a_program_without_measurements_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no measurement to start from"):
        evidence(())


@pytest.mark.parametrize("seconds_", [0.0, -1.0, math.nan, math.inf])
def test_times_and_sizes_must_be_positive(seconds_: float) -> None:
    with pytest.raises(ValueError, match=r"the time of 2 replicas is .* must be positive"):
        Observation(Size(2), seconds_)
    for size in ({"batch_per_replica": seconds_}, {"accumulation": seconds_}):
        with pytest.raises(ValueError, match=f"{next(iter(size))}=.* must be a positive number"):
            Size(2, **size)
    with pytest.raises(ValueError, match="replicas=0 must be a positive number"):
        Size(0)
    with pytest.raises(ValueError, match="nodes=3 is more than the 2 replicas"):
        Size(2, 3)


def test_batches_are_known_for_all_sizes_or_for_none() -> None:
    with pytest.raises(ValueError, match="some measurements have a batch size and some do not"):
        evidence((Observation(Size(1), 1.0), Observation(Size(2, 1, 8), 1.0)))
