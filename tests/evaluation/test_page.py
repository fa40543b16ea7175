"""The page of the evaluation lists what there is, and shows the numbers that were measured."""

from __future__ import annotations

import json
from pathlib import Path

from tests.evaluation import page
from tests.evaluation.lines import rows_of, run_missing
from tests.mutation.mutations import MUTATIONS
from tests.planted.catalogue import PLANTED


def test_the_page_is_that_of_its_numbers() -> None:
    numbers = json.loads(page.NUMBERS.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == page.page(numbers), "run python -m tests.evaluation --page"


def test_every_bug_and_mutation_is_listed_once() -> None:
    lines = page.page({}).splitlines()
    for entry in PLANTED:
        for strategy in entry.strategies:
            start = f"| {entry.name.replace('_', ' ')} | {' '.join(entry.ids)} | `{strategy}` | {page.UNKNOWN}"
            assert len([line for line in lines if line.startswith(start)]) == 1
    for mutation in MUTATIONS:
        assert len([line for line in lines if line.startswith(f"| `{mutation.name}` |")]) == 1


def test_a_measured_bug_shows_what_was_said() -> None:
    entry = PLANTED[0]
    row = {
        "name": entry.name,
        "strategy": entry.strategies[0],
        "which": "sin",
        "verdict": "fail",
        "cause": "some-cause",
    }
    told = page.page({"planted": [{**row, "symptom": "silent", "step": 2, "caught": True, "diagnosed": False}]})
    assert "| yes | **no** | `some-cause` | silent | 2 |" in told


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    path, ran = tmp_path / "folder" / "rows.jsonl", []

    def run(case: int) -> dict[str, int]:
        ran.append(case)
        return {"square": case * case}

    assert run_missing(path, [1, 2, 3], lambda case: {"case": case}, run, minutes=0.0) == []
    run_missing(path, [1, 2], lambda case: {"case": case}, run, minutes=None)
    rows = run_missing(path, [2, 3], lambda case: {"case": case}, run, minutes=None)
    assert ran == [1, 2, 3]
    assert [(row["case"], row["square"]) for row in rows] == [(2, 4), (3, 9)]
    assert len(rows_of(path)) == 3
