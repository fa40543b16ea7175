"""Programs that show defects of TensorFlow and Keras without pytest-ddl, and the reports about these defects."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.known_failures import FILE, REPROS, installed, load
from suites.reports import Program, told, unreported
from suites.subject import KERAS
from tests.forks import Forks, forks

__all__ = ["forks"]
PROGRAMS = sorted(REPROS.glob("*.py"))
MOST_LINES = 15
FAILURES = load(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_short_and_belongs_to_an_entry(path):
    program = Program.read(path)
    assert program.title
    assert len([line for line in program.code.splitlines() if line.strip()]) <= MOST_LINES
    assert "pytest" not in program.code
    assert any(entry.repro == path.stem for entry in FAILURES), f"no entry of {FILE.name} names it"


@pytest.mark.parametrize("name", unreported())
def test_a_defect_that_nobody_has_reported_has_a_text_for_a_report(name):
    program = Program.read(REPROS / f"{name}.py")
    assert program.expected, f"{name}.py has no line 'Expected:' in its docstring"
    text = program.path.with_suffix(".md").read_text(encoding="utf-8")
    versions, printed = text.partition("Versions: ")[2], text.partition("```text\n")[2]
    written = program.report(printed.partition("\n```")[0], versions.partition(". ")[0])
    assert text == written, "run python -m suites.reports"


def test_each_report_is_about_an_unreported_defect():
    assert {path.stem for path in REPROS.glob("*.md")} - {"README"} == set(unreported())


@pytest.mark.nightly(
    each_commit=(
        "batch_logs_of_workers",
        "dtensor_dataset_end",
        "input_sparse_empty_piece",
        "input_uneven_pieces",
        "predict_on_batch_repeats",
        "scalar_loss",
        "server_strategy_resolver",
        "sharding_slice_newaxis",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_shows_its_defect_on_the_versions_of_its_entry_only(path, tmp_path, request):
    program = Program.read(path)
    if program.needs_gpu or "environ" in program.code or "sys.executable" in program.code:
        # What it sets is read when TensorFlow is imported.
        status, lines = program.run()
    else:
        forks: Forks = request.getfixturevalue("forks")
        status, lines = told(forks.run(path, tmp_path, 300))
    own = [entry for entry in FAILURES if entry.repro == path.stem]
    devices = ("", "cpu", *(["gpu"] if list(Path("/dev").glob("nvidia[0-9]*")) else []))
    wrong = any(entry.applies(installed(), subject) and entry.device in devices for entry in own for subject in KERAS)
    assert (status, len(lines)) == ((1, 1) if wrong else (0, 0)), lines
