"""Numbers computed from the times: the published figures, intervals over repeats, and agreement of accuracies."""

from __future__ import annotations

import pytest

from asv_bench.studies.mnist.results import PUBLISHED, Agreement
from tests.asv_bench.mnist.synthetic import experiment, training


def test_the_published_times_give_the_published_figures() -> None:
    known = PUBLISHED.scaling
    assert known.efficiency.value == pytest.approx(0.6966, abs=5e-5)
    assert known.speed_up == pytest.approx(1.3931, abs=5e-5)
    assert known.overhead == pytest.approx(1.436, abs=5e-4)
    assert known.serial_fraction == pytest.approx(0.436, abs=5e-4)


def test_the_first_epoch_is_told_apart() -> None:
    found = experiment()
    assert found.all_epochs.single.value == pytest.approx(109.5)
    assert found.all_epochs.many.value == pytest.approx(78.6)
    steady = found.steady_epochs
    assert steady is not None
    assert steady.efficiency.value == pytest.approx(99 / 70 / 2)


def test_a_single_epoch_has_no_steady_part() -> None:
    assert experiment(training(1, [3.0], [0.9]), training(2, [2.0], [0.9])).steady_epochs is None


def test_an_epoch_ends_with_its_slowest_rank() -> None:
    from dataclasses import replace

    found = training(2, [1.0, 1.0], [0.9, 0.9])
    slow = replace(found.ranks[1], epoch_seconds=(0.5, 4.0))
    assert replace(found, ranks=(found.ranks[0], slow)).epoch_seconds == [1.0, 4.0]


def test_one_run_has_no_interval() -> None:
    assert experiment().all_epochs.efficiency.low is None


def test_efficiency_is_that_of_pairs_so_that_a_slow_hour_does_not_widen_it() -> None:
    runs = [
        training(replicas, [seconds * slow, seconds * slow], [0.9, 0.9], repeat=repeat)
        for repeat, slow in enumerate((1.0, 3.0, 2.0), 1)
        for replicas, seconds in ((1, 2.0), (2, 1.25))
    ]
    found = experiment(*reversed(runs)).all_epochs
    assert found.efficiency.value == pytest.approx(0.8)
    assert (found.efficiency.low, found.efficiency.high) == pytest.approx((0.8, 0.8))
    assert found.single.low is not None
    assert found.single.low < found.single.value / 1.5


def accuracies(first: list[float], second: list[float]) -> Agreement:
    times = [1.0] * len(first)
    return experiment(training(1, times, first), training(2, times, second)).agreement


def test_accuracies_within_what_the_test_images_show_agree() -> None:
    found = accuracies([0.9, *[0.98] * 9], [0.8, *[0.975] * 9])
    assert found.passed is True
    assert str(found).startswith("agree: accuracies differ by -0.0050")


@pytest.mark.parametrize("second", [0.88, 0.995])
def test_accuracies_that_differ_do_not_agree_in_either_direction(second: float) -> None:
    found = accuracies([0.95] * 10, [second] * 10)
    assert found.passed is False
    assert "DO NOT AGREE" in str(found)


def test_accuracies_that_still_rise_are_not_judged() -> None:
    rising = [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9]
    assert accuracies([0.98] * 7, rising).passed is None
    assert accuracies([0.98] * 3, [0.5] * 3).passed is None
    assert "had not settled" in str(accuracies([0.98] * 3, [0.5] * 3))


def test_a_perfect_accuracy_does_not_make_the_bound_nothing() -> None:
    assert accuracies([1.0] * 9, [1.0] * 9).bound > 1 / 360


def test_the_spread_of_seeds_widens_the_bound() -> None:
    spread = [0.90, 0.99, 0.94]
    runs = [
        training(n, [1.0] * 9, [accuracy if n == 1 else 0.99] * 9, repeat=repeat)
        for repeat, accuracy in enumerate(spread, 1)
        for n in (1, 2)
    ]
    assert experiment(*runs).agreement.bound > experiment(*runs[:2]).agreement.bound
