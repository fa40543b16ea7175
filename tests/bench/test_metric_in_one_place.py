"""A metric is one decorated function: documented, tracked, printed and plotted from that one place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import tables
from pytest_ddl.bench import BenchSpec
from pytest_ddl.bench.asv.suite import training_suite
from pytest_ddl.bench.asv.tracked import tracked
from pytest_ddl.bench.history.detect import changes
from pytest_ddl.bench.history.meaning import FAMILIES, higher_is_better, leaf
from pytest_ddl.bench.history.page import render
from pytest_ddl.bench.history.read import read_results
from pytest_ddl.bench.history.report import HistoryReport, causes
from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.metrics import METRICS, Column, estimate, metric
from pytest_ddl.bench.metrics.counts import COUNTS
from tests.bench import made
from tests.bench.history.synthetic import Bench, commit_hashes, write_results

MIRRORED = "mirrored[replicas=2]"


@pytest.fixture
def toy() -> Iterator[str]:
    """The name of a metric that nothing but the decorator knows."""

    @metric("steps/s", "higher", tracked="energy", column=Column("steps/s", 8, "{:.1f}".format))
    def pace(launch: Launch) -> float:
        """Return the steps of all blocks per second.

        :formula: number of steps
            / sum of blocks
        :source: this test
        """
        return launch.steps_per_block * len(launch.ranks[0].blocks) / launch.measured_seconds

    yield "pace"
    del METRICS["pace"]


def test_it_is_documented(toy: str) -> None:
    cells = ("`pace`", "steps/s", "higher", "no", "steps of all blocks per second", "number of steps / sum of blocks")
    assert f"| {' | '.join(cells)} | this test |" in tables.metrics_table().splitlines()


def test_it_has_estimates(toy: str) -> None:
    found = estimate(toy, made.matrix({"one_device": [0.1, 0.1]}), "one_device")
    assert str(found) == "pace of one_device: 10 steps/s (95% interval 10 to 10, 2 launches)"


def test_it_is_tracked(toy: str) -> None:
    assert toy not in [one.name for one in tracked(BenchSpec())]
    _, dash = training_suite("training:train", name="Pace", energy=True)
    cache = {"cells": {"mirrored 2": MIRRORED}, "matrix": made.matrix({MIRRORED: [0.1, 0.2]}).as_json()}
    assert dash().track_pace(cache, "mirrored", 2)["samples"] == pytest.approx([10.0, 5.0])
    track = vars(dash)["track_pace"]
    assert (track.unit, track.higher_is_better, track.launches) == ("steps/s", True, 1)
    assert track.pretty_source == "steps of all blocks per second\npace = number of steps / sum of blocks\nthis test"


def test_it_is_printed_and_the_table_stays_narrow(toy: str) -> None:
    before, *rows = str(made.matrix({"one_device": [0.1], MIRRORED: [0.2]})).splitlines()
    assert "steps/s" not in before
    assert [row.split() for row in rows[2:5]] == [["variant", "steps/s"], ["one_device", "10.0"], [MIRRORED, "5.0"]]
    assert max(map(len, rows)) <= 100


def test_it_is_plotted(toy: str, tmp_path: Path) -> None:
    bench = Bench("training.Dash.track_pace", "steps/s", {"strategy": ["mirrored"]}, lambda number, _: 10.0 + number)
    history = read_results(write_results(tmp_path, [bench], commit_hashes(9)))
    assert higher_is_better(history.series[0].benchmark) is True
    page = render(HistoryReport(history, ()))
    assert "<h3>Pace</h3>" in page
    assert "Steps of all blocks per second." in page
    assert "Higher is better." in page
    assert 'class="chart blue"' in page


def test_its_regression_is_reported(toy: str, tmp_path: Path) -> None:
    parameters = {"strategy": ["mirrored"]}
    benches = [
        Bench("training.Dash.track_pace", "steps/s", parameters, lambda number, _: 10.0 - number // 20),
        Bench("training.Gate.track_step_time", "seconds", parameters, lambda number, _: 10.0 + number // 20),
    ]
    history = read_results(write_results(tmp_path, benches, commit_hashes(40)))
    steps = tuple(change for one in history.series for change in changes(one) if change.kind == "step")
    report = HistoryReport(history, steps)
    (group,) = causes(report.candidates)
    assert [leaf(one.series.benchmark) for one in group] == ["step_time", "pace"]
    assert "pace <b>" in render(report)


def test_a_name_is_given_once(toy: str) -> None:
    with pytest.raises(
        ValueError, match=r"there is already a metric 'pace', in tests\.bench\.test_metric_in_one_place:"
    ):
        metric("", "lower", name=toy)(lambda launch: 0.0)


@pytest.mark.parametrize(("document", "missing"), [(None, "formula"), ("Return one.\n\n:formula: 1", "source")])
def test_formula_and_source_are_required(document: str | None, missing: str) -> None:
    def undocumented(launch: Launch) -> float:
        return 1.0

    undocumented.__doc__ = document
    with pytest.raises(ValueError, match=f"metric 'undocumented': add a line ':{missing}: …' to the docstring"):
        metric("", "lower")(undocumented)
    assert "undocumented" not in METRICS


def test_metrics_name_families_and_no_suite_tracks_a_name_twice() -> None:
    assert {one.family for one in METRICS.values()} <= {"", *(one.name for one in FAMILIES)}
    assert not {one.name for one in METRICS.values() if one.tracked} & set(COUNTS)


def test_tracked_and_printed_metrics_are_numbers_of_one_variant() -> None:
    assert [one.name for one in METRICS.values() if (one.tracked or one.column) and one.of is None] == []
