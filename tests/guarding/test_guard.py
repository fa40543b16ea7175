"""The guard of real jobs: right programs raise no alarm, and a mistake is found within one interval, with its cause."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import guarded_programs as programs
import pytest

pytestmark = pytest.mark.slow
InRank = Callable[[str, Callable[[], Any]], list[Any]]
MIRRORED, WORKERS = "mirrored", "multi_worker_mirrored"
SEEN = 8
"""Step of the first check after a mistake is planted."""

MODELS = [
    programs.dense, programs.normalized, programs.embedded, programs.half_precise, programs.averaged, programs.frozen,
    programs.large, programs.stateful, programs.tracked, programs.of_tensorflow, programs.of_tf_keras,
    programs.of_old_tf_keras,
]  # fmt: skip


@pytest.mark.nightly(each_commit=("normalized", "of_tf_keras-mirrored", "embedded-mirrored", "tracked-mirrored"))
@pytest.mark.parametrize("strategy", [MIRRORED, WORKERS])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_right_programs_raise_no_alarm(make: Any, strategy: str, in_rank: InRank) -> None:
    assert all(found == [] for found in in_rank(strategy, partial(programs.train, make)))


@pytest.mark.parametrize("strategy", ["one_device", "central_storage", "mirrored[replicas=3]"])
def test_right_programs_under_other_strategies(strategy: str, in_rank: InRank) -> None:
    assert in_rank(strategy, programs.train) == [[]]


def test_skipped_updates_raise_no_alarm(in_rank: InRank) -> None:
    # Keras 3 lets each worker decide by itself, and one that skips an update leaves a collective out.
    assert in_rank(MIRRORED, partial(programs.train, programs.overflowing)) == [[]]


@pytest.mark.parametrize("data", [programs.small, programs.constant], ids=lambda data: data.__name__)
def test_data_that_repeats_itself_raises_no_alarm(data: Any, in_rank: InRank) -> None:
    assert in_rank(WORKERS, partial(programs.train, data=data)) == [[], []]


# Both strategies compare the same checksums, so each mistake runs under one. Over workers, other tests find a weight
# and a counter that differ: those of a tolerance, of a restore and of the counter.
@pytest.mark.nightly(
    each_commit=(
        "mirrored-moves_a_weight",
        "mirrored-changes_signs",
        "mirrored-swaps_weights",
        "mirrored-moves_a_large_weight",
        "mirrored-moves_a_slot",
        "mirrored-sets_a_rate",
        "mirrored-breaks_all_weights",
        "mirrored-breaks_statistics",
        "multi_worker_mirrored-breaks_a_weight",
    )
)
@pytest.mark.parametrize(
    ("planted", "make", "cause", "variable"),
    [
        (programs.moves_a_weight, programs.dense, "-diverged", "sequential/dense_1/kernel"),
        (programs.changes_signs, programs.frozen, "-diverged", "sequential/dense/kernel"),
        (programs.swaps_weights, programs.frozen, "-diverged", "sequential/dense/kernel"),
        (programs.moves_a_large_weight, programs.large, "-diverged", "sequential/dense_1/kernel"),
        (programs.moves_a_slot, programs.normalized, "-diverged", "sequential/dense/kernel"),  # which follows
        (programs.sets_a_rate, programs.dense, "learning-rate-differs", "adam/learning_rate"),
        (programs.breaks_a_weight, programs.dense, "non-finite-not-synchronised", "sequential/dense/bias"),
        (programs.breaks_all_weights, programs.dense, None, "sequential/dense/kernel"),  # which follows
        (
            programs.breaks_statistics,
            programs.normalized,
            None,
            "sequential/batch_normalization/moving_variance",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("strategy", [MIRRORED, WORKERS])
def test_a_mistake_is_found_within_one_interval(
    planted: Any, make: Any, cause: str | None, variable: str, strategy: str, in_rank: InRank
) -> None:
    answers = in_rank(strategy, partial(programs.train, make, after=planted))
    assert all(found == answers[0] for found in answers)
    assert answers[0], "nothing was found"
    first_cause, step, name, replica, worker = answers[0][0]
    if cause == "-diverged":
        cause = "replicas-diverged" if strategy == MIRRORED else "workers-diverged"
    assert (first_cause, step) == (cause, SEEN)
    assert (replica, worker) == ((1, 0) if strategy == MIRRORED else (1, 1)) or cause is None
    assert name == variable


@pytest.mark.nightly(each_commit=("mirrored",))
@pytest.mark.parametrize("strategy", [MIRRORED, WORKERS])
def test_state_of_each_replica_is_found_unless_it_is_expected(strategy: str, in_rank: InRank) -> None:
    train = partial(programs.train, programs.totalled)
    for found in in_rank(strategy, train):
        assert [(one[0], one[1], one[2]) for one in found] == [("state-not-aggregated", 1, "sequential/total/total")]
    expected = {"state-not-aggregated": "a count for each replica"}
    assert all(found == [] for found in in_rank(strategy, partial(train, expect=expected)))


@pytest.mark.nightly(each_commit=("mirrored",))
@pytest.mark.parametrize("strategy", [MIRRORED, WORKERS])
def test_gradients_that_are_not_reduced_are_found_after_the_first_step(strategy: str, in_rank: InRank) -> None:
    cause = "replicas-diverged" if strategy == MIRRORED else "workers-diverged"
    for found in in_rank(strategy, partial(programs.train, apply=programs.of_each_replica)):
        assert {one[0] for one in found} == {cause}
        assert found[0][1] == 1


def test_weights_that_one_worker_restores_are_found_before_the_first_step(in_rank: InRank) -> None:
    for found in in_rank(WORKERS, partial(programs.train, before=programs.loses_a_restore)):
        assert found[0] == ("initial-weights-differ", 0, "sequential/dense/kernel", 1, 1)


def test_a_counter_that_one_worker_moves_is_found(in_rank: InRank) -> None:
    for found in in_rank(WORKERS, partial(programs.train, after=programs.counts_once_more)):
        assert found[0] == ("iteration-count-wrong", SEEN, "adam/iteration", 1, 1)


def test_workers_that_read_the_same_examples_are_found(in_rank: InRank) -> None:
    for found in in_rank(WORKERS, partial(programs.train, data=programs.whole)):
        assert found == [("examples-duplicated", 4, None, 1, 1)]
    assert in_rank(WORKERS, partial(programs.train, data=programs.whole, feed=False)) == [[], []]


@pytest.mark.parametrize("strategy", [MIRRORED, WORKERS])
def test_a_tolerance_lets_rounding_pass(strategy: str, in_rank: InRank) -> None:
    train = partial(programs.train, programs.frozen, tolerance=1e-5, after=programs.moves_a_weight)
    assert all(found == [] for found in in_rank(strategy, train))


@pytest.mark.nightly(each_commit=("mirrored", "multi_worker_mirrored-swaps_weights"))
@pytest.mark.parametrize(
    ("planted", "make", "cause"),
    [
        (programs.sets_a_rate, programs.frozen, "learning-rate-differs"),
        (programs.swaps_weights, programs.frozen, "-diverged"),
        (programs.breaks_a_weight, programs.dense, "non-finite-not-synchronised"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("strategy", [MIRRORED, WORKERS])
def test_a_tolerance_lets_nothing_else_pass(
    planted: Any, make: Any, cause: str, strategy: str, in_rank: InRank
) -> None:
    if cause == "-diverged":
        cause = "replicas-diverged" if strategy == MIRRORED else "workers-diverged"
    for found in in_rank(strategy, partial(programs.train, make, tolerance=1e-5, after=planted)):
        assert found[0][:2] == (cause, SEEN)


@pytest.mark.nightly(each_commit=("mirrored",))
@pytest.mark.parametrize("strategy", [MIRRORED, WORKERS])
def test_a_loop_in_the_scope_raises_no_alarm(strategy: str, in_rank: InRank) -> None:
    assert all(found == [] for found in in_rank(strategy, programs.in_scope))


def test_workers_that_count_other_steps_are_found(in_rank: InRank) -> None:
    for found in in_rank(WORKERS, programs.counts_a_step_less):
        assert [one[0] for one in found] == ["unequal-steps"]


def test_the_error_says_where_and_why(in_rank: InRank) -> None:
    ((text, causes),) = in_rank(MIRRORED, programs.raises)
    assert causes == ("replicas-diverged",)
    assert "step 1, variable sequential/dense_1/kernel, replica 1, worker 0" in text
    assert "Assign one value on all replicas" in text
