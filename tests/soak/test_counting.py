"""Growth of memory: a leak is distinguished from a buffer that grows once, and from noise."""

from __future__ import annotations

import random

import pytest

from tests.soak.counting import SAMPLES, Growth

NOISE = random.Random(0)


@pytest.mark.parametrize(
    ("samples", "leaks"),
    [
        ([10_000 * number for number in range(SAMPLES)], True),
        ([10_000 * number + NOISE.randrange(20_000) for number in range(SAMPLES)], True),
        ([7_000_000] * SAMPLES, False),
        ([7_000_000 + NOISE.randrange(100_000) for _ in range(SAMPLES)], False),
        ([0] * 30 + [1_000_000] * 10, False),
        ([min(number, 12) * 50_000 for number in range(SAMPLES)], False),
        ([-1000 * number for number in range(SAMPLES)], False),
    ],
)
def test_growth(samples: list[int], leaks: bool) -> None:
    assert Growth.of(samples).leaks is leaks


def test_too_few_samples_judge_nothing() -> None:
    with pytest.raises(AssertionError, match="too few samples"):
        Growth.of([1, 2, 3])
