"""Programs that schedule their own steps on a ClusterCoordinator: what is compared, and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import coordinator_programs as programs
import coordinator_timing_programs as timing
import pytest

from pytest_ddl import check_training
from pytest_ddl.notes import NoteKind

GIVEN = {"global_batch_size": 12, "timeout": 120}
pytestmark = pytest.mark.slow


def compared_one_by_one(report):
    notes = [note for note in report.notes if note.kind is NoteKind.HOW]
    return any("run again one step at a time" in note and "STEP-EQ, OPT-STATE" in note for note in notes)


@pytest.mark.nightly(each_commit=("records_once",))
@pytest.mark.parametrize("program", [programs.records_once, programs.records_each_step_of_one_device])
def test_a_right_program_passes_and_says_what_was_compared(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.passed, str(report)
    assert "matches one device" not in str(report)
    assert compared_one_by_one(report), str(report)
    # Keras' own counter may lose updates; its weights do not.
    assert {finding.variable for finding in report.approximations} <= {"sgd/iteration"}


@pytest.mark.nightly(each_commit=("ascends_on_shuffled_data", "takes_longer_steps_in_every_other_closure"))
@pytest.mark.parametrize(
    "program",
    [
        programs.ascends,
        programs.takes_steps_three_times_as_long,
        programs.ascends_on_shuffled_data,
        programs.takes_longer_steps_on_shuffled_data,
        programs.takes_longer_steps_in_every_other_closure,
    ],
)
def test_updates_of_another_size_or_sign_are_found(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert [finding.check for finding in report.findings] == ["PS"], str(report)
    # Closures that overlapped show it by themselves, if they were recorded.
    shown = ("run again one step at a time", "from the same weights and examples")
    assert any(text in report.findings[0].message for text in shown)


@pytest.mark.nightly
def test_more_closures_than_steps_of_one_device_are_found():
    report = check_training(programs.schedules_more, "parameter_server", **GIVEN)
    assert [(finding.check, finding.cause) for finding in report.findings] == [("PS", "unequal-steps")], str(report)
    assert "the scheduled closures computed 14 updates, and one device 12" in str(report)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "causes"),
    [(timing.changes_the_rate_half_way, ["closures-not-awaited"]), (timing.waits_before_the_rate_changes, [])],
)
def test_a_rate_that_changes_while_closures_run_is_found(program, causes):
    report = check_training(program, "parameter_server", **GIVEN)
    assert [finding.cause for finding in report.findings] == causes, str(report)
    assert report.verdict == ("fail" if causes else "pass"), str(report)


@pytest.mark.nightly
def test_fewer_closures_after_the_last_record_are_found():
    report = check_training(timing.omits_steps_after_the_last_record, "parameter_server", **GIVEN)
    assert [(finding.check, finding.cause) for finding in report.findings] == [("PS", "unequal-steps")], str(report)
    assert "the scheduled closures computed 10 updates, and one device 12" in str(report)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program", [timing.never_joins, timing.joins_after_recording, timing.never_joins_and_records_each_step]
)
def test_weights_that_are_read_before_the_closures_end_are_found(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert [(finding.check, finding.cause) for finding in report.findings] == [("PS", "closures-not-awaited")], str(
        report
    )
    assert "closures were still running when step 1 was recorded" in str(report)
    assert "coordinator.join()" in (report.findings[0].fix or "")
    assert "coordinator.schedule(" in report.findings[0].lines[0]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program",
    [
        timing.records_each_closure,
        timing.records_before_the_last_closures_end,
        timing.records_every_fifth_step,
    ],
)
def test_a_program_that_joins_at_its_end_passes(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.passed, str(report)
    assert compared_one_by_one(report), str(report)


@pytest.mark.nightly
def test_weights_that_move_after_the_last_record_move():
    report = check_training(timing.records_before_the_first_closure_ends, "parameter_server", **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("trains_adam_on_shuffled_data",))
@pytest.mark.parametrize("program", [programs.consumes_other_examples, programs.trains_adam_on_shuffled_data])
def test_one_device_is_given_the_examples_of_the_closures(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.passed, str(report)
    assert compared_one_by_one(report), str(report)
    assert any("one device was given the batches that the closures consumed" in note for note in report.notes)


@pytest.mark.nightly(each_commit=("weighs_each_closure_by_its_number",))
@pytest.mark.parametrize(
    "program", [programs.weighs_each_closure_by_its_number, programs.weighs_each_closure_by_a_counter]
)
def test_each_closure_is_recomputed_from_what_it_read_and_consumed(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.passed, str(report)
    assert any("one device recomputed the gradients of 12 of 12 closures" in str(note) for note in report.notes)


@pytest.mark.nightly
def test_examples_that_one_device_never_consumes_decide_nothing():
    report = check_training(programs.consumes_examples_of_its_own, "parameter_server", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert "were never consumed on one device" in str(report.inconclusive)


@pytest.mark.nightly(each_commit=("consumes_half_of_the_data",))
@pytest.mark.parametrize(
    ("program", "missing"), [(programs.consumes_half_of_the_data, 24), (programs.gives_one_batch_to_all_closures, 36)]
)
def test_examples_that_closures_never_consume_decide_nothing(program, missing):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert report.program_reasons
    assert f"{missing} of 48 examples never" in str(report.inconclusive)


def test_a_batch_that_is_no_argument_decides_nothing_in_another_order():
    report = check_training(programs.hides_its_batch, "parameter_server", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert "give the batch to strategy.run as an argument" in str(report.inconclusive)


def assert_names_assignment(report, variable):
    """The first line is the one of the program that assigns the variable, and not one of the optimizer."""
    (line,) = report.findings[0].lines
    number = int(re.search(r"coordinator_programs.py:(\d+) \(the assignment\)", line)[1])
    assert f"{variable}.assign(" in Path(programs.__file__).read_text().splitlines()[number - 1], line


def test_a_sum_that_closures_add_to_passes():
    report = check_training(programs.adds_up_what_it_consumes, "parameter_server", **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
def test_a_sum_that_closures_write_back_is_found():
    report = check_training(programs.writes_its_sum_back, "parameter_server", **GIVEN)
    found = [(finding.check, finding.cause, finding.variable) for finding in report.findings]
    assert found == [("PS", "lost-update", "sum_of_features")], str(report)
    assert_names_assignment(report, "total")


@pytest.mark.nightly(each_commit=("loses_updates_recorded_on_one_device",))
@pytest.mark.parametrize("program", [programs.loses_updates, programs.loses_updates_recorded_on_one_device])
def test_updates_that_are_lost_are_found(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert [(finding.check, finding.cause) for finding in report.findings] == [("PS", "lost-update")], str(report)
    assert_names_assignment(report, "weight")


@pytest.mark.nightly
def test_weights_that_closures_overwrite_are_no_pass():
    report = check_training(programs.moves_by_a_rule_of_its_own, "parameter_server", **GIVEN)
    assert report.verdict == "inconclusive"
    assert any("weight is overwritten by assign(...) in closures" in reason for reason in report.inconclusive)


@pytest.mark.nightly(each_commit=("writes_a_moving_average_back",))
@pytest.mark.parametrize("program", [programs.writes_a_moving_average_back, programs.writes_an_unwatched_average_back])
def test_state_that_closures_take_back_from_each_other_is_found(program):
    report = check_training(program, "parameter_server", **GIVEN)
    found = [(finding.check, finding.cause, finding.variable) for finding in report.findings]
    assert found == [("PS", "lost-update", "kept")], str(report)
    assert_names_assignment(report, "kept")


@pytest.mark.nightly(each_commit=("keeps_the_largest",))
@pytest.mark.parametrize("program", [programs.writes_a_moving_average_back_in_turn, programs.keeps_the_largest])
def test_state_that_closures_may_take_back_is_no_pass(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.verdict != "pass", str(report)
    assert "kept" in str(report)


@pytest.mark.nightly(each_commit=("keeps_the_latest",))
@pytest.mark.parametrize(
    "program",
    [programs.keeps_the_latest, programs.keeps_the_latest_of_one_sign, programs.moves_an_average_by_differences],
)
def test_state_that_no_closure_takes_back_passes(program):
    report = check_training(program, "parameter_server", **GIVEN)
    assert report.passed, str(report)
