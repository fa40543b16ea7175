"""The pictures show the facts of the records: differences, replicas, examples and losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.differences import differences
from pytest_ddl.pages.distances import MOST_STEPS, Distances, measured
from pytest_ddl.pages.examples import examples
from pytest_ddl.pages.heat_map import heat_map
from pytest_ddl.pages.losses import losses
from pytest_ddl.pages.picture import Picture, step_ticks
from pytest_ddl.records import RankRecord, TrainingRecord
from pytest_ddl.web.units import decades, shown
from tests.pages.made import Element, parsed, report_of

WORKERS = {"replicas": 4, "workers": 2}


def element(picture: Picture) -> Element:
    assert not picture.absent, picture.absent
    return parsed(str(picture))


def heat(report: Report) -> dict[str, list[str]]:
    table = element(heat_map(report, measured(report))).one("table", kind="heat")
    return {row[0].rpartition(" ")[0]: row[1:] for row in table.rows()[1:]}


def changed(record: TrainingRecord | None, **changes: object) -> TrainingRecord:
    assert record is not None
    return replace(record, ranks=tuple(replace(rank, **changes) for rank in record.ranks))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0434, "0.0434"),
        (1.008e-15, "1.01 x 10⁻¹⁵"),
        (-2.5, "\N{MINUS SIGN}2.5"),
        (4e13, "4 x 10¹³"),
        (float("inf"), "∞"),
        (float("nan"), "not a number"),
        (0.0, "0"),
    ],
)
def test_numbers_of_any_size_are_short(value: float, text: str) -> None:
    assert shown(value).replace("\N{MULTIPLICATION SIGN}", "x") == text


def test_a_logarithmic_axis_has_few_ticks_and_shows_the_bound() -> None:
    assert decades(-3, 14) == [-3, 0, 3, 6, 9, 12]
    assert decades(-1, 1) == [-1, 0, 1]


@pytest.mark.parametrize("count", [1, 2, 7, 13, 200])
def test_ticks_of_steps_are_few_and_name_the_first_and_the_last(count: int) -> None:
    ticks = step_ticks(range(count))
    assert (ticks[0].text, ticks[-1].text) == ("0", str(count - 1))
    assert len(ticks) <= 14
    assert [tick.at for tick in ticks] == sorted({tick.at for tick in ticks})


def test_the_worst_variable_is_highlighted_with_its_first_wrong_step() -> None:
    report = report_of(worker_shift_at=3, **WORKERS)
    found = measured(report)
    assert found.first_wrong == 3
    assert found.steps == (0, 1, 2, 3, 4)
    assert found.tracks[0].variable.name == "dense/kernel"
    picture = element(differences(found))
    key = [one.text for one in picture.one("figcaption").find("span")]
    assert key == ["5 other variables", "dense/kernel"]
    assert "dense/kernel is the worst: it differs by 0.5, and its bound is" in picture.one("desc").text
    assert len(picture.find("path", kind="first-wrong")) == 1
    rows = picture.one("table").rows()[1:]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[3][1] == "0.5"
    assert rows[3][4] == "2"


def test_bounds_are_those_that_judged_the_report() -> None:
    report = report_of(scale=2.0)
    assert report.tolerance is not None
    found = measured(report)
    worst = found.tracks[0]
    one = worst.worst[1]
    assert one is not None
    assert one.bound == report.tolerance.variable(worst.variable.index, 1).value == report.findings[0].tolerance
    assert measured(replace(report, tolerance=None)).first_wrong == 1


def test_values_that_must_be_equal_have_a_place_on_the_axis() -> None:
    report = report_of(initial_shift=0.25)
    found = measured(report)
    assert found.first_wrong == 0
    assert found.tracks[0].largest == float("inf")
    picture = element(differences(found))
    assert {"∞", "equal", "1 x"} <= {one.text for one in picture.find("span", kind="tick")}
    assert "before the first step" in picture.one("desc").text


def test_a_passing_report_stays_within_its_bounds() -> None:
    report = report_of(shuffle_sums=True)
    assert report.passed
    text = element(differences(measured(report))).one("desc").text
    assert text == "All 6 variables stay within their bounds in steps 0 to 4."


def test_long_runs_show_some_steps_and_the_first_wrong_one() -> None:
    report = report_of((4,) * 450, worker_shift_at=213, **WORKERS)
    found = measured(report)
    assert len(found.steps) <= MOST_STEPS
    assert found.first_wrong == 213
    assert (found.steps[0], found.steps[-1]) == (0, 450)


def test_large_models_show_few_steps_and_the_first_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddl.pages.distances.MOST_ELEMENTS", 1)
    found = measured(report_of((4,) * 30, worker_shift_at=13, **WORKERS))
    assert found.steps == (0, 12, 13, 14, 15, 30)
    assert found.first_wrong == 13
    assert [tick.text for tick in step_ticks(found.steps)] == ["0", "12", "13", "14", "15", "30"]


def test_the_heat_map_shows_which_replicas_are_wrong() -> None:
    cells = heat(report_of(worker_shift_at=3, **WORKERS))
    assert cells["dense/kernel"][:2] in (["✓", "✓"], ["=", "="])
    assert all("10¹" in cell for cell in cells["dense/kernel"][2:])
    assert cells["embedding/frozen"] == ["="] * 4


def test_the_heat_map_names_the_tasks_of_replicas() -> None:
    report = report_of(worker_shift_at=2, **WORKERS)
    table = element(heat_map(report, measured(report))).one("table", kind="heat")
    assert table.rows()[0] == ["variable", *(f"replica {at} worker:{at // 2}" for at in range(4))]
    tips = [cell.attributes["title"] for cell in table.find("td", kind="hot3")]
    assert len(tips) == 2
    assert all(tip.startswith("difference 0.5, bound ") for tip in tips)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"variables": ()}, "no variable was watched in both runs (run.watch names what to compare)"),
        ({"asynchronous": True}, "steps ran concurrently, so that no step has a state of its own"),
        ({"steps": ()}, "no step was recorded in both runs, and all variables are equal before the first step"),
    ],
)
def test_without_states_a_sentence_says_why(changes: dict[str, object], reason: str) -> None:
    report = report_of(scale=2.0)
    report = replace(report, distributed=changed(report.distributed, **changes))
    found = measured(report)
    assert differences(found).absent == heat_map(report, found).absent == reason


def test_no_variable_has_no_picture() -> None:
    assert differences(Distances((), (), "why")).absent == "why"


def rows_of(report: Report) -> list[list[str]]:
    return element(examples(report)).one("table", kind="examples").rows()


def test_repeated_and_missing_examples_are_marked() -> None:
    report = report_of((6, 6), duplicate=True)
    assert rows_of(report) == [
        ["", "replica 0", "replica 1", "missing"],
        ["step 1", "0-2", "↻ 0-2", "✗ 3-5"],
        ["step 2", "6-8", "↻ 6-8", "✗ 9-11"],
    ]
    said = examples(report).about
    assert said.startswith("All replicas consume the same examples: 6 examples are consumed more often than on one")
    assert "6 are missing (✗), from step 1 on. Numbers are the ids that the program recorded." in said


def test_dropped_examples_are_missing() -> None:
    rows = rows_of(report_of((6, 6), drop=True))
    assert rows[1:] == [["step 1", "0-2", "3-4", "✗ 5"], ["step 2", "6-8", "9-10", "✗ 11"]]


def test_right_data_has_no_marks() -> None:
    report = report_of((6, 6), scale=2.0)
    assert rows_of(report) == [["", "replica 0", "replica 1"], ["step 1", "0-2", "3-5"], ["step 2", "6-8", "9-11"]]
    assert examples(report).about.startswith("Every step consumes the examples that one device consumes")


def _by_contents(rank: RankRecord) -> RankRecord:
    steps = []
    for step in rank.steps:
        batches = tuple(
            replace(
                one, fingerprints=tuple(7919 * int(name) + 10**15 for name in one.example_ids or ()), example_ids=None
            )
            for one in step.batches
        )
        steps.append(replace(step, batches=batches))
    return replace(rank, steps=tuple(steps))


def test_examples_without_ids_are_numbered_by_their_first_use_on_one_device() -> None:
    report = report_of((6, 6), duplicate=True)
    records = {
        name: replace(record, ranks=tuple(map(_by_contents, record.ranks)))
        for name, record in (("reference", report.reference), ("distributed", report.distributed))
        if record is not None
    }
    report = replace(report, **records)
    assert rows_of(report)[1] == ["step 1", "1-3", "↻ 1-3", "✗ 4-6"]
    assert "numbered by their contents" in examples(report).about


def test_unobserved_examples_are_a_sentence() -> None:
    assert examples(report_of(observe=False, scale=2.0)).absent.startswith("the examples of some replicas were not")


def test_long_data_is_cut_around_the_first_wrong_step() -> None:
    report = report_of((4,) * 60, scale=2.0)
    assert len(rows_of(report)) == 25
    assert examples(report).about.endswith("Steps 1 to 24 of 60 are shown.")


def test_both_losses_are_drawn() -> None:
    report = report_of(scale=2.0)
    picture = element(losses(report))
    assert [one.text for one in picture.one("figcaption").find("span")] == ["one device", "mirrored[replicas=2]"]
    assert len(picture.find("path", kind="line")) == 2
    assert picture.one("desc").text.startswith("In step 2: ")


def test_losses_of_many_magnitudes_get_a_logarithmic_axis() -> None:
    report = report_of(scale=2.0)
    assert report.reference is not None
    (rank,) = report.reference.ranks
    steps = tuple(replace(step, loss=10.0 ** (3 - 2 * step.index)) for step in rank.steps)
    small = replace(report, reference=replace(report.reference, ranks=(replace(rank, steps=steps),)))
    ticks = [one.text for one in element(losses(small)).find("span", kind="tick")]
    assert {"1", "10⁻⁴"} <= set(ticks)


def test_losses_that_are_not_finite_leave_gaps_and_none_leave_no_picture() -> None:
    report = report_of(scale=2.0)

    def lost(record: TrainingRecord | None, value: float | None) -> TrainingRecord:
        assert record is not None
        ranks = [
            replace(rank, steps=tuple(replace(step, loss=value if step.index != 2 else 1.0) for step in rank.steps))
            for rank in record.ranks
        ]
        return replace(record, ranks=tuple(ranks))

    gaps = replace(report, distributed=lost(report.distributed, float("nan")))
    assert "Only" not in element(losses(gaps)).one("desc").text
    none = replace(
        report, reference=changed(report.reference, steps=()), distributed=changed(report.distributed, steps=())
    )
    assert losses(none).absent.startswith("no step reported a finite loss")
