"""Ends of loops: what the program does after its data has ended, and data of the program's own that ends earlier."""

from __future__ import annotations

import ending_programs as programs
import numpy as np
import pytest

from pytest_ddl.records import VariableKind

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 8}
SLOW = pytest.mark.slow
STRATEGIES = ["one_device", "mirrored", pytest.param("multi_worker_mirrored", marks=SLOW)]


def of_weights(record, indices):
    return {v.name for v in record.variables if v.index in indices and v.kind is VariableKind.TRAINABLE}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_values_after_the_end_of_data_of_unknown_length_are_recorded(ranks, strategy):
    for record in ranks(strategy, programs.scales_its_weights_after_the_loop, **GIVEN):
        assert record.num_steps == 5
        assert not of_weights(record, record.cut_off)
        assert len(of_weights(record, record.final)) == 4
        for index, parts in record.final.items():
            if record.variables[index].kind is VariableKind.TRAINABLE:
                np.testing.assert_array_equal(parts[0], 2.0 * record.steps[-1].snapshot[index][0])


def test_what_a_step_changes_that_finds_no_data_is_no_change_of_the_program(ranks):
    (record,) = ranks("one_device", programs.decays_before_it_takes_a_batch, **GIVEN)
    assert len(of_weights(record, record.cut_off)) == len(of_weights(record, record.final)) == 4


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "program", ["runs_out_of_its_own_data", "runs_out_of_its_own_data_in_the_graph"], ids=["eager", "graph"]
)
def test_the_end_of_other_data_is_an_error_of_the_program(records, strategy, program):
    for record in records(strategy, getattr(programs, program), **GIVEN):
        assert record.error is not None
        assert record.error.type == "RuntimeError"
        assert "an iterator of the program's own ended in step 3" in record.error.message
        assert record.num_steps == 2


@SLOW
def test_a_scheduled_step_that_runs_out_of_other_data_is_an_error_of_the_program(records):
    (record,) = records("parameter_server", programs.schedules_a_step_that_runs_out_of_its_own_data, **GIVEN)
    assert "an iterator of the program's own ended in step 1" in record.error.message


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_data_may_end_together_with_that_of_the_loop(ranks, strategy):
    assert all(record.num_steps == 5 for record in ranks(strategy, programs.ends_both_together, **GIVEN))


def test_a_step_that_the_data_is_too_short_for_is_noted(ranks):
    (record,) = ranks("mirrored", programs.takes_two_batches_in_a_step, **GIVEN)
    assert record.num_steps == 2
    assert any("the data ended within step 3, which had taken 8 example(s)" in note for note in record.notes)
