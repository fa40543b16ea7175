"""Collectives timed without training, and their meaning for a step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ddl.bench import Counters, collectives
from pytest_ddl.bench.collectives import (
    CollectiveTiming,
    _prove,
    measure_collectives,
    replayed_communication_time,
)
from pytest_ddl.bench.metrics import NoNumberError
from tests.bench.made import launch


def timing(size: int, seconds: float, **given: Any) -> CollectiveTiming:
    fields = {"strategy": "mirrored[replicas=4]", "kind": "all_reduce", "replicas": 4, "per_call": 10, **given}
    return CollectiveTiming(size=size, samples=(seconds, seconds, 9 * seconds), **fields)


def test_bandwidths_are_of_the_median() -> None:
    found = timing(2**20, 0.001)
    assert found.algorithm_bandwidth == pytest.approx(2**20 / 0.001)
    assert found.bus_bandwidth == pytest.approx(1.5 * 2**20 / 0.001)
    assert "all_reduce of 1048576 B: 1000.0 µs, 1.049 GB/s, bus 1.573 GB/s" in str(found)


def test_timing_survives_json() -> None:
    found = timing(2**20, 0.001)
    assert CollectiveTiming.from_json(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kinds": ["scan"]}, "of all_reduce, all_gather"),
        ({"kinds": []}, "of all_reduce, all_gather"),
        ({"sizes": [0]}, "whole numbers of bytes"),
        ({"samples": 0}, "samples=0"),
        ({"variant": "one_device"}, "give one with 2 replicas or more"),
        ({"variant": "mirrored[replicas=1]"}, "give one with 2 replicas or more"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        measure_collectives(**{"device": "cpu", **given})


# -- what they say about a step ----------------------------------------------------------------------

TIMINGS = [timing(2**10, 0.001), timing(2**20, 0.032)]


def step(reduced: int, count: int, replicas: int = 4) -> Any:
    counters = Counters(collectives={"all_reduce": count}, reduced_bytes=reduced)
    return launch(f"mirrored[replicas={replicas}]", 0.1, replicas, 64, counters=counters)


def test_time_of_a_steps_own_all_reduces() -> None:
    assert replayed_communication_time(step(3 * 2**10, 3), TIMINGS) == pytest.approx(0.003)
    # Half way between both sizes in logarithms.
    assert replayed_communication_time(step(2**15, 1), TIMINGS) == pytest.approx((0.001 * 0.032) ** 0.5)


@pytest.mark.parametrize(
    ("reduced", "count", "replicas", "words"),
    [
        (0, 0, 4, "no all-reduce was counted"),
        (2**21, 1, 4, r"outside the measured sizes \(1024 to 1048576 B\)"),
        (2**15, 1, 2, r"\(none\)"),
    ],
)
def test_sizes_that_were_not_measured_are_not_guessed(reduced: int, count: int, replicas: int, words: str) -> None:
    with pytest.raises(NoNumberError, match=words):
        replayed_communication_time(step(reduced, count, replicas), TIMINGS)


# -- on clusters -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["mirrored", "multi_worker_mirrored", "central_storage"])
def test_every_kind_and_size_is_timed(variant: str) -> None:
    found = measure_collectives(variant, [6, 4096], ["all_reduce", "all_gather"], samples=2, device="cpu")
    # 6 bytes are two float32 of an all-reduce, and one of each replica in an all-gather.
    assert [(each.kind, each.size) for each in found] == [
        ("all_reduce", 8), ("all_reduce", 4096), ("all_gather", 8), ("all_gather", 4096),
    ]  # fmt: skip
    for each in found:
        assert len(each.samples) == 2
        assert all(sample > 0 for sample in each.samples)
        assert (each.replicas, each.device, each.pinned) == (2, "cpu", False)
        assert each.machine["cores"]


def test_collective_that_does_not_take_place_is_caught() -> None:
    """Planted: a strategy with one replica claims to have two."""
    import tensorflow as tf

    with pytest.raises(AssertionError, match=r"of 3 values over 2 replicas gave 1\.0, not 3\.0: nothing was exchanged"):
        _prove(tf.distribute.OneDeviceStrategy("CPU:0"), "all_reduce", 2)


def test_a_gather_of_only_one_replica_is_caught() -> None:
    import tensorflow as tf

    with pytest.raises(AssertionError, match=r"gave None, not 2\.0 at index 3: not everything was exchanged"):
        _prove(tf.distribute.OneDeviceStrategy("CPU:0"), "all_gather", 2)


def test_a_result_of_which_only_the_first_value_is_right_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setattr(collectives, "exchanged", lambda _kind, value: tf.concat([3.0 * value[:1], value[1:]], axis=0))
    with pytest.raises(AssertionError, match=r"gave 2\.0, not 6\.0 at index 1: not everything was exchanged"):
        _prove(tf.distribute.OneDeviceStrategy("CPU:0"), "all_reduce", 2)
