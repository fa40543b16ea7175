"""Random retraces are distinguished from those of a defect."""

from __future__ import annotations

import random

import pytest

from pytest_ddl.bench.counters.retraces import retraces_more
from pytest_ddl.bench.launching.records import Counters


def counted(retraces, traces=1, steps=200):
    return Counters(retraces=retraces, traces=traces, steady_steps=steps)


def looks_that_alarm(launches, seed, rates, clump=1):
    """Return whether programs that retrace at random cause an alarm after any of 1 to ``launches`` launches."""
    rng = random.Random(seed)

    def side(rate):
        return counted(clump * sum(rng.random() < rate for _ in range(200)), traces=5)

    pairs = [(side(rates[0]), side(rates[1])) for _ in range(launches)]
    return any(retraces_more(pairs[: number + 1]) for number in range(launches))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("clump", [1, 3])
def test_a_program_that_retraces_at_random_is_no_worse_than_itself(rate, clump):
    assert sum(looks_that_alarm(6, seed, (rate, rate), clump) for seed in range(200)) <= 4


@pytest.mark.parametrize("rates", [(0.05, 0.15), (0.2, 0.4)])
def test_one_that_retraces_clearly_more_is_found(rates):
    assert sum(looks_that_alarm(6, seed, rates) for seed in range(50)) >= 48


def test_of_a_program_that_has_settled_one_retrace_is_enough():
    assert retraces_more([(counted(0), counted(0)), (counted(0), counted(1))])
    assert not retraces_more([(counted(0), counted(0))])


def test_a_base_that_traces_late_has_not_settled_though_it_has_no_retrace():
    assert not retraces_more([(counted(0, traces=5), counted(2))])
    assert retraces_more([(counted(0, traces=5), counted(200))])


def test_an_improvement_is_no_regression():
    assert not retraces_more([(counted(200), counted(20))])
    assert retraces_more([(counted(200), counted(400))])
