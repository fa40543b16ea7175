"""Cases are better only if intervals separate them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asv_bench.studies.comparing import best, joint, ratio, shown, written


def test_a_ratio_is_that_of_pairs() -> None:
    # Both cases drift by a factor of 10; their ratio does not.
    found = ratio([1.0, 10.0, 5.0], [2.0, 20.0, 10.0])
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.verdict == "less"
    assert ratio([2.0, 20.0], [1.0, 10.0]).verdict == "more"


@pytest.mark.parametrize("values", [[1.0], [1.0, 3.0, 0.4]])
def test_a_ratio_without_a_narrow_interval_decides_nothing(values: list[float]) -> None:
    assert ratio(values, [1.0] * len(values)).verdict == "not separated"


@pytest.mark.parametrize(("one", "two"), [([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([math.inf], [1.0])])
def test_wrong_samples_are_refused(one: list[float], two: list[float]) -> None:
    with pytest.raises(ValueError, match=r"each run needs its partner|positive, finite"):
        ratio(one, two)


def test_the_best_is_named_only_if_separated_from_every_other() -> None:
    slow, fast, near = [2.0, 2.1, 1.9, 2.0], [1.0, 1.05, 0.95, 1.0], [1.02, 1.0, 0.97, 1.03]
    assert best({"slow": slow, "fast": fast}).name == "fast"
    found = best({"slow": slow, "fast": fast, "near": near})
    assert (found.name, found.smallest, found.rivals) == (None, "fast", ("near",))
    assert str(found) == "not separated: fast, near"
    with pytest.raises(ValueError, match="nothing to compare"):
        best({})


def test_equal_cases_are_rarely_told_apart() -> None:
    """A name among equal cases is wrong, and has at most the probability 5 %."""
    generator = np.random.default_rng(0)
    trials = 300
    wrong = sum(
        best({name: np.exp(generator.normal(0, 0.3, 5)).tolist() for name in "abcd"}).name is not None
        for _ in range(trials)
    )
    # Four standard deviations of a count of 5 %.
    assert wrong <= 0.05 * trials + 4 * math.sqrt(0.05 * 0.95 * trials)


def test_several_intervals_share_their_level() -> None:
    assert joint(1) == pytest.approx(0.95)
    assert joint(10) == pytest.approx(0.995)
    assert joint(0) == pytest.approx(0.95)
    one, other = [1.0, 1.2, 1.1], [1.5, 1.6, 1.7]
    # The same data separate one pair of cases, but not one of many.
    assert ratio(one, other).verdict == "less"
    assert ratio(one, other, level=joint(200)).verdict == "not separated"


def test_numbers_are_written_without_exponents() -> None:
    assert [written(value) for value in (0.012345, 12.345, 12345.6, 1e8)] == ["0.0123", "12.3", "12346", "1e+08"]
    assert shown([2.0, 2.0]) == "2 (2 to 2)"
    assert shown([2.0], scale=1000) == "2000"
