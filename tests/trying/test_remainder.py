"""Training of a script that has not run when the script is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddl.trying.remainder import ActiveLine, unrun_training

HELPERS = """\
import tensorflow as tf
def step(batch):
    with tf.GradientTape() as tape:
        loss = batch
    optimizer.apply(tape.gradient(loss, weights), weights)
def phase(data):
    for epoch in range(3):
        for batch in data:
            step(batch)
def shown(batch):
    with tf.GradientTape() as tape:
        loss = batch
    return tape.gradient(loss, batch)
"""
FIRST = HELPERS.count("\n") + 1
"""Line after them."""
IN_STEP = [9, 3]
"""Lines of ``phase`` and ``step`` that are active in a step."""


def unrun(tmp_path: Path, code: str, active: list[int], ran: list[int]) -> int | None:
    """Return the line of the training that has not run, counted from the end of the helpers."""
    file = tmp_path / "script.py"
    file.write_text(HELPERS + code)
    place = unrun_training(
        [ActiveLine(str(file), line) for line in active], {ActiveLine(str(file), line) for line in ran}
    )
    return None if place is None else place.line - FIRST


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("phase(data)\nphase(other)\n", 1),
        ("phase(data)\nmodel.evaluate(data)\nmodel.fit(x, y)\n", 2),
        ("phase(data)\nmodel.evaluate(data)\nmodel.save('m')\nprint(shown(x))\n", None),
        ("phase(data)\ndef later():\n    model.fit(x)\n", None),
    ],
)
def test_what_trains_after_the_active_line_is_found(tmp_path: Path, code: str, line: int | None) -> None:
    assert unrun(tmp_path, code, [FIRST, *IN_STEP], [FIRST, *IN_STEP]) == line


def test_what_has_run_in_an_earlier_round_of_a_loop_is_no_remainder(tmp_path: Path) -> None:
    code = "for epoch in range(3):\n    phase(data)\n    phase(other)\n"
    first, second = FIRST + 1, FIRST + 2
    assert unrun(tmp_path, code, [first, *IN_STEP], [first, second, *IN_STEP]) is None
    assert unrun(tmp_path, code, [first, *IN_STEP], [first, *IN_STEP]) == 2


def test_only_the_branch_that_runs_has_a_remainder(tmp_path: Path) -> None:
    code = "if few:\n    phase(data)\n    model.train_on_batch(x, y)\nelse:\n    model.fit(x)\n"
    assert unrun(tmp_path, code, [FIRST + 1, *IN_STEP], [FIRST + 1, *IN_STEP]) == 2
    assert unrun(tmp_path, code.replace("    model.train_on_batch(x, y)\n", ""), [FIRST + 1, *IN_STEP], []) is None


def test_code_that_is_in_no_file_has_no_remainder() -> None:
    assert unrun_training([ActiveLine("<made>", 1)], ()) is None
