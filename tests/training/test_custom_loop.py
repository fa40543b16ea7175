"""Custom training loops under every strategy: what is recorded, and that it agrees with one device."""

from __future__ import annotations

import numpy as np
import pytest
import training_programs as programs

DISTRIBUTED = ["mirrored", "central_storage", "parameter_server", "multi_worker_mirrored"]
GIVEN = {"global_batch_size": 8, "steps": 3}
SLOW = pytest.mark.slow


def assert_same(reference, distributed, replicas):
    """Every component after every step is the reference's, and every example was consumed once."""
    for rank in distributed:
        assert [item.name for item in rank.variables] == [item.name for item in reference.variables]
        assert len(rank.steps) == len(reference.steps)
        for expected, step in zip(reference.steps, rank.steps, strict=True):
            assert step.loss == pytest.approx(expected.loss, rel=1e-5)
            for index, components in step.snapshot.items():
                for component in components:
                    np.testing.assert_allclose(expected.snapshot[index][0], component, rtol=1e-5, atol=1e-6)
    for position, expected in enumerate(reference.steps):
        batches = [batch for rank in distributed for batch in rank.steps[position].batches]
        assert sorted(batch.replica for batch in batches) == list(range(replicas))
        consumed = sorted(item for batch in batches for item in batch.fingerprints or ())
        assert consumed == sorted(expected.batches[0].fingerprints)
        assert sum(batch.loss for batch in batches) == pytest.approx(expected.loss, rel=1e-5)


@pytest.mark.nightly(
    each_commit=(
        "dataset_loop-mirrored",
        "embedding-multi_worker_mirrored",
        "tf_keras_loop-central_storage",
        "tf_keras_loop-parameter_server",
    )
)
@pytest.mark.parametrize("strategy", DISTRIBUTED)
@pytest.mark.parametrize(
    "program",
    [
        "contract",
        pytest.param("custom_loop", marks=SLOW),
        pytest.param("dataset_loop", marks=SLOW),
        pytest.param("embedding", marks=SLOW),
        pytest.param("tf_keras_loop", marks=SLOW),
    ],
)
def test_agrees_with_one_device(ranks, strategy, program):
    train = getattr(programs, program)
    (reference,) = ranks("one_device", train, **GIVEN)
    found = ranks(strategy, train, **GIVEN)
    assert_same(reference, found, 1 if strategy == "parameter_server" else 2)
    assert all(record.notes == () for record in found)


def test_uneven_last_batch_and_its_ids(ranks):
    (record,) = ranks("mirrored", programs.dataset_loop, global_batch_size=8)
    sizes = [[batch.size for batch in step.batches] for step in record.steps]
    assert sizes == [[4, 4], [3, 2]]
    ids = [item for step in record.steps for batch in step.batches for item in batch.example_ids]
    assert ids == list(range(13))


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage", "multi_worker_mirrored"])
def test_more_replicas_than_examples(records, strategy):
    """The record has the examples of each replica, whatever the framework does with an empty replica."""
    for record in records(strategy, programs.one_example, global_batch_size=1):
        if record.error is not None:
            assert "Error" in record.error.type
            continue
        sizes = [batch.size for batch in record.steps[0].batches]
        assert sizes in ([1, 0], [1], [0])


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_observing_adds_no_trace_and_changes_nothing(ranks, strategy):
    (observed,) = ranks(strategy, programs.custom_loop, **GIVEN)
    (plain,) = ranks(strategy, programs.custom_loop, **GIVEN, observe=False)
    assert [step.traces for step in observed.steps] == [step.traces for step in plain.steps] == [1, 1, 1]
    assert [step.loss for step in observed.steps] == [step.loss for step in plain.steps]
    for one, other in zip(observed.steps, plain.steps, strict=True):
        for index in one.snapshot:
            for left, right in zip(one.snapshot[index], other.snapshot[index], strict=True):
                np.testing.assert_array_equal(left, right)
    assert plain.steps[0].batches == ()
    assert any("not observed" in note for note in plain.notes)


@pytest.mark.nightly(each_commit=("one_device",))
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one_device", "central_storage", "mirrored", "parameter_server"])
def test_layers_built_by_the_first_batch(ranks, strategy):
    (record,) = ranks(strategy, programs.late_tf_keras_layers, **GIVEN)
    assert len([item for item in record.variables if item.kind == "trainable"]) == 4
    slots = [item for item in record.variables if item.kind == "slot"]
    assert len(slots) == 4
    # The optimizer has made its count already and its slots not yet, so weights come after the count.
    assert all(record.variables[item.slot_of].kind == "trainable" for item in slots)
    weights = [item for item in record.variables if item.kind == "trainable"]
    for item in [*weights, *slots]:
        # The values that they were created with, on every replica, and not those after the step that created them.
        assert item.since == 0
        assert len(record.initial[item.index]) == len(record.steps[0].snapshot[item.index])
        for before, after in zip(record.initial[item.index], record.steps[0].snapshot[item.index], strict=True):
            assert not np.array_equal(before, after)
            if item.kind == "slot" or "bias" in item.name:
                assert not np.any(before)


@pytest.mark.slow
def test_layers_built_by_the_first_batch_are_moved_in_a_noise_run(ranks):
    plain, moved = (ranks("one_device", programs.late_layers, **GIVEN, perturbation=p)[0] for p in (0, 1))
    for item in plain.variables:
        ours, theirs = plain.initial[item.index][0], moved.initial[item.index][0]
        if item.kind == "trainable":
            assert np.all(np.spacing(np.abs(ours)) == np.abs(ours - theirs))
        else:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_unseen_creation_has_the_value_after_its_step(ranks):
    """A variable that a graph creates is first read after its step if no operations are put into graphs."""
    (record,) = ranks("one_device", programs.late_layers, **GIVEN, observe=False)
    weights = [item for item in record.variables if item.kind == "trainable"]
    assert len(weights) == 4
    for item in weights:
        assert item.since == 1
        np.testing.assert_array_equal(record.initial[item.index][0], record.steps[0].snapshot[item.index][0])


@pytest.mark.nightly
@pytest.mark.slow
def test_layers_built_under_mirrored_by_keras_3_are_an_error_of_the_record(records):
    (record,) = records("mirrored", programs.late_layers, **GIVEN)
    assert record.error.type.endswith("InvalidArgumentError")
    assert "cond/Placeholder" in record.error.message
    assert record.steps == ()


def test_parameter_server_schedules_all_at_once(ranks):
    (record,) = ranks("parameter_server", programs.asynchronous, global_batch_size=8, steps=4)
    assert [len(step.batches) for step in record.steps] == [1, 1, 1, 1]
    assert [bool(step.snapshot) for step in record.steps] == [False, False, False, True]
    # Keras 3 counts by reading, adding and writing: closures that run side by side lose counts.
    iterations = next(item.index for item in record.variables if item.kind == "iterations")
    assert 1 <= int(record.steps[-1].snapshot[iterations][0]) <= 4


def test_concurrent_is_ignored_by_synchronous_strategies(ranks):
    (record,) = ranks("one_device", programs.asynchronous, global_batch_size=8, steps=4)
    assert all(step.snapshot for step in record.steps)


def test_parameter_server_has_no_batches(records):
    (record,) = records("parameter_server", programs.plain_variables, **GIVEN)
    assert record.error.type == "TypeError"
    assert "Use run.steps" in record.error.message


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker_mirrored"])
def test_loops_that_record_by_themselves(ranks, strategy):
    for record in ranks(strategy, programs.plain_variables, **GIVEN):
        assert [step.index for step in record.steps] == [1, 2]
        assert record.steps[0].values == {"extra": 2.5}
        assert [item.name for item in record.variables] == ["w", "count"]
        assert [item.kind.value for item in record.variables] == ["trainable", "state"]
        assert int(record.steps[-1].snapshot[1][0]) == 2
        for step in record.steps:
            for batch in step.batches:
                assert batch.size == len(batch.example_ids)
                assert min(batch.example_ids) >= 100


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
@pytest.mark.parametrize(
    ("program", "converted"),
    [
        # train_step, replica_step, _learn and squared_errors: a conversion takes longer than the step of a small model.
        (programs.needs_autograph, 4),
        # The conversion of train_step holds the one of replica_step.
        (programs.a_function_in_a_function_needs_autograph, 3),
    ],
)
def test_autograph_converts_only_the_functions_of_the_user(ranks, strategy, program, converted):
    (record,) = ranks(strategy, program, **GIVEN)
    assert len(record.steps) == 3
    assert record.results["value"] == {"converted": converted}
