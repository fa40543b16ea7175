"""Calls that got no step because of the limit are facts of a record; those that ran before are none."""

from __future__ import annotations

import limited_programs as programs
import pytest
import tensorflow as tf

from pytest_ddl.training.call_sites import CallSites


def left_out(records):
    return [site.method for record in records for site, ran in record.facts.get("call_sites", {}).items() if not ran]


@pytest.mark.parametrize("strategy", ["one_device", pytest.param("parameter_server", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("program", "found"),
    [
        (programs.two_phases, ["run.steps"]),
        (programs.phases_in_a_loop, ["run.steps"]),
        (programs.epochs, []),
        (programs.no_data_left, []),
    ],
)
def test_a_loop_without_a_step_is_noted_and_an_epoch_without_one_is_not(ranks, strategy, program, found):
    assert left_out(ranks(strategy, program, global_batch_size=8, steps=3)) == found


@pytest.mark.parametrize("steps", [4, None])
def test_a_limit_that_leaves_steps_to_all_loops_notes_none(ranks, steps):
    (record,) = ranks("one_device", programs.two_phases, global_batch_size=8, steps=steps)
    assert left_out([record]) == []
    assert len(record.facts.get("call_sites", ())) == (0 if steps is None else 2)


@pytest.mark.parametrize(
    ("program", "method"),
    [(programs.batches_in_epochs_then_others, "run.batches"), (programs.fits_two_models, "run.fit")],
)
def test_batches_and_fit_are_told_apart_by_their_lines(ranks, program, method):
    assert left_out(ranks("one_device", program, global_batch_size=8, steps=3)) == [method]


def test_one_batch_that_is_repeated_for_ever_leaves_out_nothing(ranks):
    records = ranks("one_device", programs.two_phases, global_batch_size=8, steps=5, constant=True)
    assert left_out(records) == []


@pytest.mark.parametrize(("steps", "ends"), [(3, (6,)), (6, (6,)), (9, ()), (None, ())])
def test_the_length_of_a_loop_that_the_limit_ends_is_a_fact(ranks, steps, ends):
    (record,) = ranks("one_device", programs.six_steps, global_batch_size=8, steps=steps)
    assert record.facts.get("cut", ()) == ends


@pytest.mark.parametrize(("steps", "fits"), [(3, ((4, None),)), (99, ())])
def test_the_epochs_of_a_fit_that_the_limit_ends_are_a_fact(ranks, steps, fits):
    (record,) = ranks("one_device", programs.fits_four_epochs, global_batch_size=8, steps=steps)
    assert record.facts.get("cut_fits", ()) == fits


def test_a_train_step_of_the_program_may_be_a_graph():
    class Model:
        @tf.function
        def train_step(self, data):
            return data

    sites = CallSites()
    sites.fitted(Model())
    assert sites.facts()["fitted"] == {"train_step": True, "loss_function": False}
