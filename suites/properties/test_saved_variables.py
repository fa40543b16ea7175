"""Save variables of every kind under one strategy and load them under others, in the background and by a manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites.models.variables import aggregate
from suites.properties.clusters import run_under
from suites.properties.test_values import distributed, everyone
from suites.properties.variables import has_one_copy, local_components, local_replicas

SAVED_BY = ("one_device", "mirrored", "mirrored[replicas=3]", "multi_worker_mirrored")
LOADED_BY = ("one_device", "mirrored", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage")
STRATEGIES = ["one_device", "mirrored[replicas=3]", "multi_worker_mirrored"]
WITH_LAST_STEP = pytest.mark.ddl_item("variables.checkpoint.manager", tensorflow=">=2.20")
"""Older managers have no argument last_checkpoint_step."""

KINDS = [
    (synchronization, aggregation, dtype)
    for synchronization, aggregation, dtype in (
        ("ON_READ", "SUM", "float64"),
        ("ON_READ", "SUM", "float32"),
        ("ON_READ", "SUM", "int64"),
        ("ON_READ", "MEAN", "float64"),
        ("ON_READ", "ONLY_FIRST_REPLICA", "float64"),
        ("ON_READ", "ONLY_FIRST_REPLICA", "int32"),
        ("ON_WRITE", "SUM", "int64"),
        ("ON_WRITE", "MEAN", "float32"),
        ("ON_WRITE", "NONE", "int64"),
        ("ON_WRITE", "ONLY_FIRST_REPLICA", "float64"),
    )
]


def named(kind: tuple[str, str, str]) -> str:
    return "_".join(kind)


def variables(strategy: Any) -> dict[str, Any]:
    """Create a variable of each kind, by name."""
    import tensorflow as tf

    with strategy.scope():
        return {
            named(kind): tf.Variable(
                tf.fill([2], tf.constant(-7, kind[2])),
                trainable=False,
                synchronization=tf.VariableSynchronization[kind[0]],
                aggregation=tf.VariableAggregation[kind[1]],
            )
            for kind in KINDS
        }


def payload(replica: int, number: int) -> np.ndarray[Any, Any]:
    """Return a replica's value. Sums and means over 1, 2 or 3 replicas are whole numbers, and so is their third."""
    return 36 * np.array([5 * replica + number, 1 + replica * replica])


def stored(kind: tuple[str, str, str], number: int, replicas: int) -> np.ndarray[Any, Any]:
    """Return what a checkpoint must hold: the value in cross-replica context."""
    values = np.stack([payload(replica, number) for replica in range(replicas)])
    return values[0] if kind[1] == "NONE" else aggregate(values, kind[1])


def save(folder: str) -> int:
    """Assign other values on each replica, and save on every rank, because a sum is read by all of them together."""
    import tensorflow as tf

    strategy = current_strategy()
    found = variables(strategy)
    for number, kind in enumerate(KINDS):
        if kind[0] == "ON_READ" and not has_one_copy(strategy):
            values = distributed(strategy, lambda replica, number=number: payload(replica, number), kind[2])
            strategy.run(found[named(kind)].assign, args=(values,))
        else:
            found[named(kind)].assign(stored(kind, number, strategy.num_replicas_in_sync))
    rank = local_replicas(strategy)[0]
    tf.train.Checkpoint(**found).write(f"{folder}/{'chief' if rank == 0 else rank}")
    return int(strategy.num_replicas_in_sync)


def load(folder: str, saved_by: int) -> None:
    import tensorflow as tf

    strategy = current_strategy()
    found = variables(strategy)
    tf.train.Checkpoint(**found).read(f"{folder}/chief").assert_consumed()
    for number, kind in enumerate(KINDS):
        expected = stored(kind, number, saved_by)
        splits = kind[:2] == ("ON_READ", "SUM") and not has_one_copy(strategy)
        part = expected // strategy.num_replicas_in_sync if splits else expected
        for component in strategy.experimental_local_results(found[named(kind)]):
            np.testing.assert_array_equal(component.read_value(), part, err_msg=f"component of {kind}")
        with strategy.scope():
            np.testing.assert_array_equal(found[named(kind)].read_value(), expected, err_msg=str(kind))


@pytest.mark.ddl_item("variables.checkpoint.on_read", "variables.checkpoint.mirrored", under=(*SAVED_BY, *LOADED_BY))
@pytest.mark.parametrize("saved_by", SAVED_BY)
def test_each_kind_goes_to_other_numbers_of_replicas(saved_by, tmp_path):
    """A sum is split over the replicas that load it, and reads as the sum again."""
    replicas = run_under(saved_by, save, str(tmp_path))[0]
    for loaded_by in LOADED_BY:
        run_under(loaded_by, load, str(tmp_path), replicas)


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
@pytest.mark.ddl_item("variables.checkpoint.on_read", shows="behavior")
def test_a_variable_that_cannot_be_read_cannot_be_saved(ddl_strategy, tmp_path):
    """The replicas of a variable with no aggregation have values of their own, and there is no common value."""
    import tensorflow as tf

    with ddl_strategy.scope():
        own = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ, trainable=False)
    with pytest.raises(ValueError, match=r"[Aa]ggregation"):
        tf.train.Checkpoint(own=own).write(str(tmp_path / "own"))


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"])
@pytest.mark.ddl_item("variables.checkpoint.async")
def test_what_is_saved_in_the_background_is_the_value_at_the_call(ddl_strategy, tmp_path):
    """Each replica adds to the variables right after each save. The three files hold the values before."""
    import tensorflow as tf

    strategy = ddl_strategy
    sums = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    with strategy.scope():
        own = tf.Variable(tf.zeros([2], tf.float64), trainable=False, aggregation=tf.VariableAggregation.SUM)
        total = tf.Variable(tf.zeros([2], tf.float64), trainable=False, **sums)
    checkpoint = tf.train.Checkpoint(own=own, total=total)
    options = tf.train.CheckpointOptions(enable_async=True)
    steps = distributed(strategy, lambda replica: [replica + 1.0, 10.0 * replica])
    each = np.sum(everyone(strategy, lambda replica: [replica + 1.0, 10.0 * replica]), axis=0)

    @tf.function(autograph=False)
    def step():
        def add(value):
            own.assign_add(tf.identity(value))
            total.assign_add(tf.identity(value))

        strategy.run(add, args=(steps,))

    paths = []
    for _ in range(3):
        step()
        paths.append(checkpoint.save(str(tmp_path / "async"), options=options))
        step()
    checkpoint.sync()
    for number, path in enumerate(paths):
        tf.train.Checkpoint(own=own, total=total).read(path).assert_existing_objects_matched()
        for variable in (own, total):
            with strategy.scope():
                np.testing.assert_array_equal(variable.read_value(), (2 * number + 1) * each)


@pytest.fixture
def counted(ddl_strategy):
    """Return a variable that each replica counts in, and a function that makes one step."""
    import tensorflow as tf

    strategy = ddl_strategy
    with strategy.scope():
        counter = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.SUM)
    given = distributed(strategy, lambda replica: replica + 1, "int64")
    return counter, lambda: strategy.run(lambda value: counter.assign_add(tf.identity(value)), args=(given,))


def total(strategy: Any, steps: int) -> int:
    """Return the value of the counter after this number of steps."""
    return steps * sum(everyone(strategy, lambda replica: replica + 1))


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("variables.checkpoint.manager")
@pytest.mark.parametrize("keep", [1, 2, None])
def test_a_manager_keeps_the_newest(keep, ddl_strategy, counted, tmp_path):
    """A second manager of the same folder continues the numbers of the first one."""
    import tensorflow as tf

    counter, step = counted

    def check(manager: Any, last: int) -> None:
        kept = list(range(1 if keep is None else max(1, last - keep + 1), last + 1))
        names = [f"ckpt-{number}" for number in kept]
        assert [Path(path).name for path in manager.checkpoints] == names
        assert sorted(path.stem for path in tmp_path.glob("*.index")) == sorted(names)
        assert {path.name.partition(".")[0] for path in tmp_path.glob("*.data*")} == set(names)
        assert manager.latest_checkpoint == tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / names[-1])

    with pytest.raises(ValueError, match="max_to_keep"):
        tf.train.CheckpointManager(tf.train.Checkpoint(v=counter), tmp_path, max_to_keep=0)
    first = tf.train.CheckpointManager(tf.train.Checkpoint(v=counter), tmp_path, max_to_keep=keep)
    assert first.latest_checkpoint is None
    for number in range(1, 4):
        step()
        assert first.save() == str(tmp_path / f"ckpt-{number}")
        check(first, number)
    step()
    second = tf.train.CheckpointManager(tf.train.Checkpoint(v=counter), tmp_path, max_to_keep=keep)
    check(second, 3)
    assert second.restore_or_initialize() == str(tmp_path / "ckpt-3")
    assert [int(part) for part in ddl_strategy.experimental_local_results(counter)] == local_components(
        ddl_strategy, [total(ddl_strategy, 3)] * ddl_strategy.num_replicas_in_sync
    )
    step()
    second.save()
    check(second, 4)
    for path in second.checkpoints:
        tf.train.Checkpoint(v=counter).read(path)
        assert int(counter.read_value()) == total(ddl_strategy, int(path.rpartition("-")[2]))


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("variables.checkpoint.manager")
@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, [1, 5, 9]),
        *(pytest.param(*one, marks=WITH_LAST_STEP) for one in ((0, [4, 8]), (2, [6, 10]), (7, [11]))),
    ],
    ids=lambda value: str(value),
)
def test_a_manager_waits_for_its_interval(last, expected, ddl_strategy, counted, tmp_path):
    """A step before the interval has passed saves nothing, also if the count begins at step 0."""
    import tensorflow as tf

    counter, step = counted
    with ddl_strategy.scope():
        steps = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def managed(last: int | None = None) -> Any:
        options = {} if last is None else {"last_checkpoint_step": last}
        return tf.train.CheckpointManager(
            tf.train.Checkpoint(v=counter, steps=steps),
            tmp_path,
            None,
            step_counter=steps,
            checkpoint_interval=4,
            **options,
        )

    manager, saved = managed(last), []
    for number in range(1, 12):
        step()
        steps.assign_add(1)
        if manager.save() is not None:
            saved.append(number)
    assert saved == expected
    # The last save may be younger than the interval, but not of the same step.
    assert (manager.save(check_interval=False) is None) == (expected[-1] == 11)
    again = managed()
    again.restore_or_initialize()
    assert int(steps.read_value()) == 11
    assert again.save() is None
    with pytest.raises(ValueError, match="step_counter"):
        tf.train.CheckpointManager(tf.train.Checkpoint(v=counter), tmp_path, None, checkpoint_interval=4)


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item("variables.checkpoint.manager")
def test_a_manager_without_a_checkpoint_calls_its_function(ddl_strategy, counted, tmp_path):
    import tensorflow as tf

    counter, step = counted
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(v=counter), tmp_path / "new", 3, init_fn=lambda: counter.assign(50)
    )
    assert manager.restore_or_initialize() is None
    step()
    assert int(counter.read_value()) == 50 + total(ddl_strategy, 1)
    written: list[str] = []
    options = tf.train.CheckpointOptions(experimental_write_callbacks=[written.append])
    assert [manager.save(options=options)] == written == [manager.latest_checkpoint]
    step()
    assert manager.restore_or_initialize() == manager.latest_checkpoint
    assert int(counter.read_value()) == 50 + total(ddl_strategy, 1)
