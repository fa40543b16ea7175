"""The table: one row for each cell, a reason for each missing number, and no rank for what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import html5lib
import pytest

from pytest_ddl.bench.evaluating import pictures, store, table
from pytest_ddl.bench.evaluating.records import CellVerdict, Evaluation
from pytest_ddl.bench.evaluating.table import EvaluationSummary
from tests.bench.evaluating.synthetic import ABSENT, COPIES, ONE, SEEDS, TWO, WORKERS, curves, evaluation, references


def row_of(one: Evaluation, variant: str) -> tuple[dict[str, str], list[str]]:
    summary = EvaluationSummary(one)
    return next(row for row in summary.rows if row["variant"] == variant), summary.notes


def noted(text: str, notes: list[str]) -> str:
    """The note that a cell refers to."""
    return notes[int(text[text.index("[") + 1 : text.index("]")]) - 1]


def wrong() -> Evaluation:
    one = evaluation()
    verdict = CellVerdict(
        "fail", "gradient-scaled: the update is twice too large", ("gradient-scaled",), "ALL <details>"
    )
    return replace(one, verdicts={**one.verdicts, TWO.variant: verdict})


def test_every_cell_has_a_row_in_the_order_of_ranks() -> None:
    rows = EvaluationSummary(evaluation()).rows
    assert {row["variant"] for row in rows} == {cell.variant for cell in (ONE, TWO, WORKERS, COPIES, ABSENT)}
    assert rows[-1]["variant"] == ABSENT.variant
    assert [row["rank"] for row in rows[:-1]] == sorted(row["rank"] for row in rows[:-1])


def test_a_complete_cell_has_all_numbers() -> None:
    row, _notes = row_of(evaluation(), TWO.variant)
    assert row["correct"] == "yes"
    assert row["against_one"] == "equal with all 5 seeds"
    assert row["result"].startswith("0.8893 ±")
    assert int(row["steps"].split()[0]) > 0
    assert row["efficiency"].startswith("1.00")
    assert row["data"] == "4 KiB"
    assert row["memory"] == "402"
    assert row["staleness"] == "-"


def test_a_cell_that_cannot_run_stays_with_its_reason() -> None:
    row, notes = row_of(evaluation(), ABSENT.variant)
    assert noted(row["correct"], notes) == "tpu cannot run here: needs a TPU, and this machine has none"


def test_missing_numbers_have_reasons() -> None:
    row, notes = row_of(evaluation(), WORKERS.variant)
    assert "its workers do not step together" in noted(row["efficiency"], notes)
    assert "transfers were not counted" in noted(row["data"], notes)
    assert noted(row["energy"], notes) == "no energy was read: no RAPL"
    row, notes = row_of(evaluation(), COPIES.variant)
    assert "bytes of copies are not counted" in noted(row["data"], notes)


def test_staleness_is_that_of_all_seeds() -> None:
    row, _notes = row_of(evaluation(), WORKERS.variant)
    assert row["staleness"] == "0.17 (at most 1)"


def test_a_program_that_schedules_its_own_steps_has_no_staleness() -> None:
    one = evaluation()
    row, notes = row_of(
        replace(one, curves=tuple(replace(each, staleness=None) for each in one.curves)), WORKERS.variant
    )
    assert "this program schedules its own" in noted(row["staleness"], notes)


def test_a_wrong_cell_is_marked_and_not_ranked() -> None:
    row, notes = row_of(wrong(), TWO.variant)
    assert row["correct"].startswith("WRONG [")
    assert "gradient-scaled" in noted(row["correct"], notes)
    assert row["rank"].startswith("- [")
    assert noted(row["rank"], notes) == "no rank: WRONG"
    assert any("its speed has no meaning" in text.lower() for text in table.warnings_of(EvaluationSummary(wrong())))


@pytest.mark.parametrize(("verdict", "word"), [("inconclusive", "undecided ["), ("known", "known [")])
def test_other_verdicts_are_shown_with_their_reason(verdict: str, word: str) -> None:
    one = evaluation()
    one = replace(one, verdicts={**one.verdicts, TWO.variant: CellVerdict(verdict, "rounding is too large")})
    row, notes = row_of(one, TWO.variant)
    assert row["correct"].startswith(word)
    assert "rounding is too large" in noted(row["correct"], notes)


@pytest.mark.parametrize(
    ("part", "column"), [("comparing", "correct"), ("training", "result"), ("measuring", "throughput")]
)
def test_a_part_that_failed_has_its_first_line(part: str, column: str) -> None:
    one = evaluation(verdicts={}) if part == "comparing" else evaluation()
    row, notes = row_of(one.with_failure(TWO.variant, part, "a rank\n died\nTraceback …"), TWO.variant)
    assert noted(row[column], notes) == f"{part} {TWO.variant} failed: a rank died"


def test_a_target_that_was_not_reached_is_reported_with_the_last_loss() -> None:
    one = evaluation()
    slow = tuple(each for each in one.curves if each.variant != TWO.variant) + curves(TWO, speed=0.99)
    row, notes = row_of(replace(one, curves=slow), TWO.variant)
    assert noted(row["steps"], notes).startswith(f"{TWO.variant}: the target was not reached; last loss 0.9")
    assert row["time"] == "-"


def test_too_few_seeds_are_reported_in_words() -> None:
    found = references(seeds=SEEDS[:2]) + curves(TWO, seeds=SEEDS[:2])
    row, notes = row_of(evaluation(cells=(ONE, TWO), curves=found), TWO.variant)
    assert row["against_one"].startswith("inconclusive")
    assert "2 seed(s) are too few" in noted(row["against_one"], notes)


def test_the_terminal_has_every_column_and_note() -> None:
    text = table.text(EvaluationSummary(wrong()))
    assert text.startswith("Shortest time to a training loss of 0.3: ")
    for title in ("rank", "against one device", "seconds to loss 0.3", "MiB of each rank", "staleness"):
        assert title in text
    assert "WRONG [" in text
    assert "perfect scaling up to about" in text


def test_an_unfinished_evaluation_says_so() -> None:
    one = replace(evaluation(), launches=(), trials=(), swept=(), complete=False, curves=evaluation().curves[:5])
    text = table.text(EvaluationSummary(one))
    assert "not complete" in text
    assert "No cell could be ranked" in text


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    written = store.write(EvaluationSummary(wrong()), tmp_path)
    assert {path.name for path in written} == {
        "index.html",
        "table.md",
        *(f"{name}.svg" for name in pictures.PICTURES),
    }
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    html5lib.HTMLParser(strict=True).parse(text)
    assert text.count('src="data:image/svg+xml;base64,') == text.count("src=") == len(pictures.PICTURES)
    assert "http://" not in text
    assert "ALL &lt;details&gt;" in text, "the whole report of the wrong cell"
    for regime in ("perfect scaling", "diminishing returns", "none (maximal data parallelism)"):
        assert regime in (tmp_path / "batch-size.svg").read_text(encoding="utf-8")


def test_pictures_without_data_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "scaling.svg").write_text("of an earlier evaluation")
    one = replace(evaluation(), launches=(), trials=(), swept=())
    assert [path.name for path in pictures.draw(EvaluationSummary(one), tmp_path)] == ["learning.svg"]
    assert not (tmp_path / "scaling.svg").exists()


def test_pictures_of_a_program_that_reports_nothing(tmp_path: Path) -> None:
    silent = tuple(replace(each, losses=(None,) * each.steps, values={}) for each in evaluation().curves)
    one = replace(evaluation(), curves=silent, target=None, trials=(), swept=())
    assert {path.name for path in pictures.draw(EvaluationSummary(one), tmp_path)} == {"scaling.svg", "step-time.svg"}
    assert "time of an example" in table.text(EvaluationSummary(one))
