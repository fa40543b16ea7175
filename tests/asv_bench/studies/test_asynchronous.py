"""Asynchronous training: its rounds, its verdicts in both directions, and Downpour against its definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asv_bench.studies import asynchronous
from asv_bench.studies.asynchronous_program import (
    ASYNCHRONOUS,
    DOWNPOUR,
    SYNCHRONOUS,
    Course,
    Images,
    Network,
    Setting,
)
from asv_bench.studies.asynchronous_report import Cell, accuracy_change, at_target, faster, report
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.training_to_target import StepsToTarget, TargetTrial

BASE = Setting(DOWNPOUR, 2, False, rate=0.1, batch=8, examples=480)


def course(seconds: float = 1.0, accuracy: float = 0.9, **given: Any) -> Course:
    """Ten updates whose loss falls from 1.0 to 0.1."""
    losses = tuple(1.0 - 0.1 * step for step in range(10))
    times = tuple(seconds * step for step in range(1, 11))
    return Course(**{"losses": losses, "seconds": times, "examples_per_update": 8, "accuracy": accuracy, **given})


def test_a_round_ends_with_a_push_and_a_fetch() -> None:
    setting = replace(BASE, push=4, fetch=6)
    assert (setting.round, setting.rounds) == (12, 5)
    assert replace(BASE, mode=SYNCHRONOUS).rounds == 30


def test_all_modes_take_the_same_examples_at_their_own_rate() -> None:
    plan = asynchronous.plan(BASE, [1, 3], {8: 0.2, 24: 0.6}, push=5, fetch=10)
    assert [(one.mode, one.workers, one.slow) for one in plan[:4]] == [
        (SYNCHRONOUS, 1, False), (ASYNCHRONOUS, 1, False), (DOWNPOUR, 1, False), (SYNCHRONOUS, 3, False),
    ]  # fmt: skip
    assert len(plan) == 3 + 6
    assert {(one.mode, one.workers, one.rate) for one in plan} >= {(SYNCHRONOUS, 3, 0.6), (ASYNCHRONOUS, 3, 0.2)}
    assert {(one.push, one.fetch) for one in plan if one.mode == DOWNPOUR} == {(5, 10)}
    assert {one.examples for one in plan} == {480}


def test_the_target_is_of_the_averaged_loss() -> None:
    # The mean of the last two of 1.0, 0.9, 0.8 ... is at 0.75 in the fourth update.
    assert at_target(course(), 0.75, window=16) == (4, 4.0)
    assert at_target(course(), 0.1, window=16) is None
    # With twice as many examples in an update, the window has one update.
    assert at_target(course(examples_per_update=16), 0.75, window=16) == (4, 4.0)


def cells(seconds: list[float], accuracies: list[float], mode: str = ASYNCHRONOUS) -> Cell:
    extra = {} if mode == SYNCHRONOUS else {"staleness": (0,) * 5 + (1,) * 5, "workers": (0, 1) * 5}
    found = tuple(course(one, two, **extra) for one, two in zip(seconds, accuracies, strict=True))
    return Cell(replace(BASE, mode=mode), found, 0.75, 16)


def test_a_mode_is_faster_only_if_an_interval_says_so() -> None:
    synchronous = cells([1.0, 1.1, 0.9], [0.9, 0.9, 0.9], SYNCHRONOUS)
    assert faster(cells([0.5, 0.55, 0.45], [0.9] * 3), synchronous).startswith("faster: 0.50")
    assert faster(cells([2.0, 2.2, 1.8], [0.9] * 3), synchronous).startswith("slower")
    assert faster(cells([0.5, 2.0, 0.9], [0.9] * 3), synchronous).startswith("not separated")
    never = replace(synchronous, target=0.01)
    assert "did not reach" in faster(never, synchronous)


def test_an_accuracy_changes_only_if_an_interval_says_so() -> None:
    synchronous = cells([1.0] * 3, [0.90, 0.92, 0.91], SYNCHRONOUS)
    assert accuracy_change(cells([1.0] * 3, [0.80, 0.82, 0.81]), synchronous).startswith("lower")
    assert accuracy_change(cells([1.0] * 3, [0.95, 0.97, 0.96]), synchronous).startswith("higher")
    assert accuracy_change(cells([1.0] * 3, [0.85, 0.99, 0.91]), synchronous).startswith("not separated")


def test_the_report_has_all_tables() -> None:
    found = [
        replace(one, setting=replace(one.setting, slow=slow))
        for slow in (False, True)
        for one in (
            cells([1.0, 1.1], [0.9, 0.91], SYNCHRONOUS),
            cells([0.5, 0.6], [0.9, 0.92]),
            cells([0.5, 0.6], [0.9, 0.92], DOWNPOUR),
        )
    ]
    tuned = StepsToTarget(0.75, (TargetTrial(8, 0.1, 10, 10, 0.7), TargetTrial(16, 0.2, 10, 10, 0.7)))
    made = report(found, tuned)
    titles = [table.title for table in made.tables]
    assert [len(table.rows) for table in made.tables[:4]] == [7, 5, 4, 5], titles
    stale = made.tables[3].rows[1]
    assert stale[3:] == ("0.5 (0.5 to 0.5)", "0.5", "1", "1", "20")
    assert made.data["cells"][1]["staleness"] == [10, 10]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"losses": (0.5,) * 9}, "9 updates instead of 10"),
        ({"losses": (float("nan"),) * 10}, "a loss is not finite"),
        ({"workers": (0,) * 10}, "worker 1 made no update"),
        ({"staleness": (-1,) * 10}, "before its parameters were fetched"),
    ],
)
def test_a_training_that_is_not_whole_is_refused(change: dict[str, Any], words: str) -> None:
    setting = replace(BASE, mode=ASYNCHRONOUS, examples=80)
    whole = course(staleness=(0,) * 10, workers=(0, 1) * 5)
    asynchronous.prove([whole], setting)
    with pytest.raises(BenchError, match=words):
        asynchronous.prove([replace(whole, **change)], setting)


def test_ranks_that_report_different_losses_are_refused() -> None:
    setting = replace(BASE, mode=SYNCHRONOUS, examples=160)
    asynchronous.prove([course(), course()], setting)
    with pytest.raises(BenchError, match="ranks report different losses"):
        asynchronous.prove([course(), course(losses=(0.5,) * 10)], setting)


# -- on clusters -------------------------------------------------------------------------------------


def images(count: int = 24) -> Images:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(count, 6)).astype(np.float32)
    labels = generator.integers(0, 10, count)
    return Images(features, labels, features, labels)


def downpour(data: Images, setting: Setting, seed: int) -> list[float]:
    """Losses of one worker of Downpour whose every batch is the whole data, written from the paper's listing."""
    import tensorflow as tf

    network = Network(6)
    server = local = network.initial(seed)
    accrued, kept, losses = np.zeros_like(server), [], []
    for step in range(setting.rounds * setting.round):
        if step % setting.fetch == 0:
            local = server
        loss, gradient = network.gradient(tf.constant(local), data.x_train, data.y_train)
        accrued = accrued + gradient.numpy()
        local = local - np.float32(setting.rate) * gradient.numpy()
        kept.append(float(loss))
        if (step + 1) % setting.push == 0:
            server = server - np.float32(setting.rate) * accrued
            accrued = np.zeros_like(server)
            losses.append(float(np.mean(kept)))
            kept = []
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(("push", "fetch"), [(1, 1), (2, 4), (6, 3)])
def test_one_worker_trains_as_the_listing_says(push: int, fetch: int) -> None:
    data = images()
    setting = Setting(DOWNPOUR, 1, False, rate=0.3, batch=24, examples=24 * 12, push=push, fetch=fetch)
    found = asynchronous.launch(data, setting, seed=3, timeout=240)
    # Batches are whole in another order, so only the last bits of float32 differ.
    np.testing.assert_allclose(found.losses, downpour(data, setting, 3), rtol=1e-5)
    # A worker's own pushes are in its copy, so they make nothing stale.
    assert set(found.staleness) == {0}
    assert found.losses[-1] < found.losses[0]


@pytest.mark.slow
def test_staleness_is_that_of_other_workers() -> None:
    """Two workers, one slow: the fast one makes most updates, and those of the slow one are stale by them."""
    data = images(64)
    setting = Setting(ASYNCHRONOUS, 2, True, rate=0.05, batch=8, examples=8 * 200, delay=0.5)
    found = asynchronous.launch(data, setting, seed=3, timeout=240)
    assert len(found.staleness) == 200
    slow = [late for late, worker in zip(found.staleness, found.workers, strict=True) if worker == 1]
    assert slow
    assert max(slow) > 0
    # Each update is stale by those between its fetch and its push, so never by more than those before it.
    assert all(late <= place for place, late in enumerate(found.staleness))
