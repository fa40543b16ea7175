"""Contents of a record: variables, layers, optimizers, errors and the limits of steps."""

from __future__ import annotations

import numpy as np
import pytest
import training_programs as programs

from pytest_ddl.records import VariableKind
from pytest_ddl.training import values

GIVEN = {"global_batch_size": 8, "steps": 3}


def by_name(record, part):
    return [item for item in record.variables if part in item.name]


def test_kinds_and_slots(ranks):
    (record,) = ranks("mirrored", programs.custom_loop, **GIVEN)
    kernel, momentum = by_name(record, "dense_1/kernel")[0], by_name(record, "dense_1_kernel_momentum")[0]
    assert kernel.kind is VariableKind.TRAINABLE
    assert (momentum.kind, momentum.slot_of) == (VariableKind.SLOT, kernel.index)
    assert [item.kind for item in by_name(record, "iteration")] == [VariableKind.ITERATIONS]
    assert [item.kind for item in by_name(record, "learning_rate")] == [VariableKind.LEARNING_RATE]
    assert kernel.distributed
    assert len(record.initial[kernel.index]) == 2
    counts = [int(step.snapshot[by_name(record, "iteration")[0].index][1]) for step in record.steps]
    assert counts == [1, 2, 3]


def test_slots_of_tf_keras(ranks):
    (record,) = ranks("one_device", programs.tf_keras_loop, **GIVEN)
    slots = [item for item in record.variables if item.kind is VariableKind.SLOT]
    assert [item.name for item in slots] == [f"m/{record.variables[item.slot_of].name}" for item in slots]
    assert record.optimizers[0].settings["momentum"] == pytest.approx(0.9)


def test_layers_and_settings(ranks):
    (record,) = ranks("mirrored", programs.batch_norm, **GIVEN)
    kinds = {item.name.rsplit("/", 1)[-1]: item.kind for item in record.variables if "batch_norm" in item.name}
    assert kinds["gamma"] is VariableKind.TRAINABLE
    assert kinds["moving_mean"] is VariableKind.STATE
    assert by_name(record, "sequential/dense/kernel")[0].kind is VariableKind.FROZEN
    assert by_name(record, "seed_generator_state")[0].kind is VariableKind.STATE
    layers = {layer.type: layer.settings for layer in record.layers}
    assert layers["BatchNormalization"]["synchronized"] is False
    assert layers["Dropout"]["rate"] == 0.5
    assert layers["Dense"]["kernel_regularizer"]["l2"] == pytest.approx(0.1)
    assert layers["Dense"]["trainable"] is False
    (optimizer,) = record.optimizers
    assert optimizer.type == "Adam"
    assert optimizer.settings["clipnorm"] == 1.0
    assert optimizer.settings["learning_rate"] == pytest.approx(0.1)
    assert optimizer.settings["schedule"]["decay_rate"] == 0.5
    rate = next(item for item in record.variables if item.kind is VariableKind.LEARNING_RATE)
    shown = [float(step.snapshot[rate.index][0]) for step in record.steps]
    assert shown == pytest.approx([0.05, 0.025])
    mean = by_name(record, "moving_mean")[0]
    first, second = record.steps[0].snapshot[mean.index]
    assert not np.array_equal(first, second)  # Keras 3 keeps one per replica: the record must show it


def test_snapshots_are_copies(ranks):
    (record,) = ranks("one_device", programs.custom_loop, **GIVEN)
    kernels = [step.snapshot[0][0] for step in record.steps]
    assert not np.array_equal(kernels[0], kernels[1])


def test_large_arrays_with_equal_bytes_are_kept_once():
    ones, zeros = np.ones(1000), np.zeros(1000)
    first, second, third = values.shared((ones, ones.copy(), zeros), ())
    assert first is second is ones
    assert third is zeros
    assert values.shared((zeros.copy(), -zeros), (ones, zeros))[0] is zeros
    assert values.shared((-zeros,), (zeros,))[0] is not zeros
    small = np.ones(3)
    assert values.shared((small.copy(),), (small,))[0] is not small


def test_replicas_and_steps_with_equal_values_share_the_arrays_of_a_record(ranks):
    (record,) = ranks("mirrored", programs.large_and_untrained, **GIVEN)
    (index,) = [variable.index for variable in record.variables if variable.name == "table"]
    arrays = [array for step in record.steps for array in step.snapshot[index]]
    assert len(record.steps) > 1
    assert len({id(array) for array in arrays}) == 1


@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker_mirrored"])
def test_an_exception_at_step_two(records, strategy):
    for record in records(strategy, programs.raises_at_two, global_batch_size=8):
        assert (record.error.type, record.error.message, record.error.step) == (
            "ValueError",
            "after step two",
            2,
        )
        assert "raises_at_two" in record.error.traceback
        assert len(record.steps) == 2


def test_exit_is_an_error(records):
    (record,) = records("one_device", programs.exits)
    assert (record.error.type, record.error.message) == ("SystemExit", "exit with status 3")


@pytest.mark.slow
def test_restart(ranks):
    given = {"global_batch_size": 8, "steps": 4}
    (first,) = ranks("mirrored", programs.restarts, **given)
    assert first.results == {"restart": True}
    assert len(first.steps) == 2
    (second,) = ranks("mirrored", programs.restarts, **given, attempt=2, first_step=2)
    assert [step.index for step in second.steps] == [3, 4]
    assert second.results == {}
    (reference,) = ranks("one_device", programs.restarts, **given)
    assert len(reference.steps) == 4


def test_counting_goes_on_over_loops(ranks):
    (record,) = ranks("one_device", programs.two_loops, global_batch_size=8, steps=5)
    assert [step.index for step in record.steps] == [1, 2, 3, 4, 5]


def test_metrics(ranks):
    (reference,) = ranks("one_device", programs.metrics, **GIVEN)
    (record,) = ranks("mirrored", programs.metrics, **GIVEN)
    assert {item.kind for item in record.variables} == {VariableKind.METRIC}
    assert record.steps[1].values["mean"] == pytest.approx(reference.steps[1].values["mean"])
    assert record.steps[0].loss is None


def test_what_cannot_be_observed_is_said(ranks):
    (record,) = ranks("one_device", programs.compiled, **GIVEN)
    assert [step.batches for step in record.steps] == [(), ()]
    assert any("refuses the observing operation" in note for note in record.notes)


def test_the_process_is_left_as_it_was(ranks):
    (before,) = ranks("one_device", programs.tells_state)
    ranks("one_device", programs.leaves_a_mess)
    (after,) = ranks("one_device", programs.tells_state)
    assert after.steps[0].values == before.steps[0].values
    assert before.steps[0].values["floatx"] == 1.0


@pytest.mark.slow
def test_runs_repeat_bit_for_bit(ranks):
    (first,) = ranks("mirrored", programs.batch_norm, **GIVEN)
    (second,) = ranks("mirrored", programs.batch_norm, **GIVEN)
    for index, components in first.steps[-1].snapshot.items():
        for left, right in zip(components, second.steps[-1].snapshot[index], strict=True):
            np.testing.assert_array_equal(left, right)


def test_versions(ranks):
    (record,) = ranks("one_device", programs.tells_state)
    assert {"python", "numpy", "tensorflow", "keras"} <= set(record.versions)
