"""The fit of the Universal Scalability Law, and bandwidths of collectives."""

from __future__ import annotations

import random

import pytest

from pytest_ddl.bench.metrics import NoNumberError
from pytest_ddl.bench.metrics.communication import algorithm_bandwidth, bus_bandwidth
from pytest_ddl.bench.metrics.usl import fit_usl, usl_of
from tests.bench.made import matrix

SIZES = (1, 2, 4, 8, 16, 32, 64)


def law(n: int, one: float = 100.0, contention: float = 0.05, coherency: float = 0.0005) -> float:
    return one * n / (1 + contention * (n - 1) + coherency * n * (n - 1))


def test_exact_law_is_found() -> None:
    found = fit_usl(SIZES, [law(n) for n in SIZES])
    assert found.throughput_of_one.value == pytest.approx(100)
    assert found.contention.value == pytest.approx(0.05)
    assert found.coherency.value == pytest.approx(0.0005)
    assert found.peak == pytest.approx((0.95 / 0.0005) ** 0.5)
    assert found.predict(128) == pytest.approx(law(128))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    noise = random.Random(5)
    held = 0
    for _ in range(200):
        found = fit_usl(SIZES, [law(n) * (1 + noise.gauss(0, 0.02)) for n in SIZES])
        held += found.contention.low < 0.05 < found.contention.high
    assert 180 <= held <= 199


def test_launches_of_one_size_are_no_more_sizes() -> None:
    with pytest.raises(NoNumberError, match=r"6 different numbers of replicas or more, not 2 \(1, 2\)"):
        fit_usl([1, 2] * 10, [100.0, 139.3] * 10)


def test_linear_scaling_has_no_peak() -> None:
    found = fit_usl(SIZES, [100.0 * n for n in SIZES])
    assert found.contention.value == pytest.approx(0, abs=1e-6)
    assert found.peak is None or found.peak > 1000


@pytest.mark.parametrize(
    ("sizes", "values", "words"),
    [([1, 2], [1.0], "2 sizes for 1 throughputs"), ([1, 2], [1.0, 0.0], "must be positive")],
)
def test_wrong_numbers_are_refused(sizes: list[int], values: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit_usl(sizes, values)


def test_law_of_a_matrix() -> None:
    times = {f"mirrored[replicas={n}]": [32 * n / law(n)] for n in SIZES if n > 1}
    found = usl_of(matrix({"one_device": [32 / law(1)], "central_storage[replicas=2]": [9.0], **times}))
    assert found.sizes == SIZES
    assert found.contention.value == pytest.approx(0.05)
    with pytest.raises(NoNumberError, match="not 2"):
        usl_of(matrix({"one_device": [0.1], "mirrored[replicas=2]": [0.1]}))


def test_bandwidths_of_nccl_tests() -> None:
    # 1 GiB in 10 ms on 8 ranks.
    size, seconds = 2**30, 0.01
    assert algorithm_bandwidth(size, seconds) == pytest.approx(107.374e9, rel=1e-5)
    assert bus_bandwidth("all_reduce", size, seconds, 8) == pytest.approx(107.374e9 * 1.75, rel=1e-5)
    assert bus_bandwidth("all_gather", size, seconds, 8) == pytest.approx(107.374e9 * 0.875, rel=1e-5)
    assert bus_bandwidth("broadcast", size, seconds, 8) == pytest.approx(107.374e9, rel=1e-5)
    assert bus_bandwidth("all_reduce", size, seconds, 2) == algorithm_bandwidth(size, seconds)


def test_bandwidth_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="one replica moves nothing"):
        bus_bandwidth("all_reduce", 8, 1.0, 1)
    with pytest.raises(ValueError, match="valid: all_reduce"):
        bus_bandwidth("scan", 8, 1.0, 2)
    with pytest.raises(ValueError, match="must be positive"):
        algorithm_bandwidth(8, 0.0)
