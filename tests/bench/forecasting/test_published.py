"""The forecast against published tables: the errors, the intervals and the refusals that the documentation states."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddl.bench.forecasting.predicting import forecast
from pytest_ddl.bench.forecasting.published import read_series
from pytest_ddl.bench.forecasting.score import Scored, compare, summaries
from pytest_ddl.bench.outcome import UsageError

PUBLISHED = Path(__file__).with_name("published_scaling.csv")


@pytest.fixture(scope="module")
def scores() -> list[Scored]:
    pytest.importorskip("scipy")
    found = []
    for one in read_series(PUBLISHED):
        points = forecast(one.evidence, [target.size for target in one.targets]).points
        found += compare(one.name, points, one.targets)
    return found


def test_later_points_are_predicted(scores: list[Scored]) -> None:
    inside, across = summaries(scores)
    assert (inside.name, inside.count, inside.refused) == ("in one node", 63, 0)
    assert (across.name, across.count) == ("across nodes", 24)
    for one, median, close in ((inside, 0.05, 0.8), (across, 0.1, 0.5)):
        assert (one.median_error or 1) <= median
        assert (one.close or 0) >= close
        assert (one.covered or 0) >= 0.85


def test_intervals_are_not_too_wide(scores: list[Scored]) -> None:
    widths = sorted((one.high or 0) / (one.low or 1) for one in scores if one.low is not None)
    assert widths[len(widths) // 2] < 1.25


def test_series_that_cannot_be_known_are_refused(scores: list[Scored]) -> None:
    refused = {one.program for one in scores if one.refused}
    predicted = {one.program for one in scores if not one.refused}
    assert refused.isdisjoint(predicted)
    # Servers that saturate; rows of several clusters; a slow first row; nodes whose link has no number.
    assert all(
        name.startswith(("ebug", "nv-tf2-efficientnet", "nv-tf1-bert-dgx", "nv-tf1-biobert")) for name in refused
    )
    assert {name for name in {one.program for one in scores} if name.startswith(("ebug", "nv-tf2-eff"))} <= refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("series,role,devices,nodes\n", "has no column throughput"),
        ("series,role,devices,nodes,throughput\na,start,1,1,5\n", "line 2: role='start' is neither anchor nor target"),
        ("series,role,devices,nodes,throughput\na,anchor,1,1,\n", "line 2: devices, nodes and throughput"),
        ("series,role,devices,nodes,throughput\na,anchor,1,1,-3\n", "line 2: throughput=-3.0 must be a positive"),
        ("series,role,devices,nodes,throughput\na,target,1,1,nan\n", "line 2: throughput='nan' must be finite"),
        ("series,role,devices,nodes,throughput\na,anchor,0,1,3\n", "line 2: devices=0 must be a whole number"),
        ("series,role,devices,nodes,throughput\na,anchor,1.5,1,3\n", "line 2: devices=1.5 must be a whole number"),
        ("series,role,devices,nodes,throughput\na,anchor,1\n", "line 2: devices, nodes and throughput"),
        ("series,role,devices,nodes,throughput\na\n", "line 2: role='' is neither"),
        (
            "series,role,devices,nodes,throughput,batch_per_device\na,anchor,1,1,9,8\na,target,2,1,9,\n",
            "some rows have batch_per_device and some do not",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as error:
        read_series(path)
    assert str(path) in str(error.value)


def test_a_file_needs_only_five_columns(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    rows = "a,anchor,1,1,100\na,anchor,2,1,190\na,anchor,2,1,190\na,target,4,1,370\n"
    # As spreadsheets write it.
    path.write_text(f"\ufeffseries,role,devices,nodes,throughput\n{rows}", encoding="utf-8")
    (one,) = read_series(path)
    assert one.evidence.per_node == 2
    assert len(one.evidence.observations) == 2
    assert [target.throughput for target in one.targets] == [370]
