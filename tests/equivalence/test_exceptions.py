"""An exception of the program is shown with its type, message, place and a traceback that a person can read."""

from __future__ import annotations

from pathlib import Path

import exception_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 2, "timeout": 100, "precision": "native"}
HELPERS = Path(__file__).with_name("exception_helpers.py")
PROGRAMS = Path(__file__).with_name("exception_programs.py")


def place_of(file: Path, words: str) -> str:
    """The place of a line as the report gives it."""
    lines = file.read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if words in line]
    return f"{file.name}:{number}, in "


SCALE = place_of(HELPERS, "the line that raises")
REFUSE = place_of(HELPERS, "raise ValueError")
RAISED = {
    programs.in_a_helper: ("ZeroDivisionError: float division by zero", SCALE),
    programs.in_a_traced_function: ("ValueError: the value is refused because of its shape", REFUSE),
    programs.at_run_time_in_a_graph: (
        "InvalidArgumentError: assertion failed: [x must be small]",
        place_of(PROGRAMS, "tf.debugging.assert_less"),
    ),
    # AutoGraph converts what a Python operation calls, and keeps no lines of it: this one made the operation.
    programs.in_a_python_operation: ("KeyError: 'nothing to look at'", place_of(PROGRAMS, "tf.numpy_function(look")),
    programs.in_a_mapped_dataset: ("FileNotFoundError: no such shard", place_of(PROGRAMS, "raise FileNotFoundError")),
    programs.in_the_train_step_of_fit: ("ValueError: the value is refused because of its shape", REFUSE),
    programs.in_a_layer: ("Dimensions must be equal", place_of(PROGRAMS, "return tf.matmul")),
    programs.without_a_message: ("RuntimeError", place_of(PROGRAMS, "        raise RuntimeError")),
    programs.with_a_tensor_in_its_message: (
        "ValueError: cannot use [0.0 1.0 2.0 ... 3000 values] as weights",
        place_of(PROGRAMS, "np.arange(3000.0)"),
    ),
    programs.with_a_class_of_its_own: ("PrivateError: one and two", f"{PROGRAMS.name}:"),
    programs.with_a_class_of_its_own_in_a_graph: ("PrivateError: one and two", f"{PROGRAMS.name}:"),
    programs.from_another_exception: ("LookupError: no scale is known", place_of(PROGRAMS, "raise LookupError")),
}


@pytest.mark.nightly(each_commit=("from_another_exception",))
@pytest.mark.slow
@pytest.mark.parametrize("program", RAISED, ids=lambda program: program.__name__)
def test_an_exception_under_the_strategy_is_shown_with_its_place(program):
    message, place = RAISED[program]
    report = check_training(program, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    finding = report.findings[0]
    assert (finding.cause, finding.symptom) == ("worker-raised", "crash")
    assert message in finding.observed
    assert message in str(report).splitlines()[0]
    assert place in finding.source, finding.source
    shown = str(report)
    assert "site-packages/tensorflow" not in finding.details.split("\n/")[0], shown
    assert len(shown) < 12_000


def test_an_exception_on_one_device_is_shown_with_its_place():
    report = check_training(programs.on_one_device_too, "mirrored", **GIVEN)
    assert report.verdict == "inconclusive"
    first, shown = str(report).splitlines()[0], str(report)
    assert "fails by itself, without a strategy too: ZeroDivisionError: float division by zero" in first
    assert SCALE in shown
    assert "return 1.0 / factor" in shown


@pytest.mark.slow
def test_an_exception_in_a_graph_on_one_device_is_shown_with_its_place():
    report = check_training(programs.in_a_traced_function_on_one_device_too, "mirrored", **GIVEN)
    first, shown = str(report).splitlines()[0], str(report)
    assert "ValueError: the value is refused because of its shape" in first
    assert REFUSE in shown


@pytest.mark.slow
def test_an_exception_of_a_noise_run_is_a_note_with_its_place():
    report = check_training(programs.in_a_run_that_measures_noise, "mirrored", **GIVEN)
    assert report.verdict == "fail"
    notes = [note for note in report.notes if "a run that measures rounding noise failed" in note]
    assert len(notes) == 1, report.notes
    assert "ArithmeticError: the weights are not the ones of the paper" in notes[0]
    assert place_of(PROGRAMS, "raise ArithmeticError") in notes[0]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_hang_is_shown_with_its_place():
    report = check_training(programs.hangs_in_a_helper, "mirrored", **{**GIVEN, "timeout": 20})
    assert report.findings[0].cause == "deadline-exceeded"
    assert place_of(PROGRAMS, "signal.pause()") in report.findings[0].source
    assert "waits in:" in str(report)
