"""The history of this project's own harness: which commits are measured, in which order, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "asv_bench")
    import own_history

    return own_history


def asv_file(commit: str, results: dict[str, list[Any]]) -> dict[str, Any]:
    return {"commit_hash": commit, "result_columns": ["result", "params", "version"], "results": results}


def test_both_ends_are_measured(own: Any) -> None:
    assert own.evenly_spaced("abcdefghi", 3) == ["a", "e", "i"]
    assert own.evenly_spaced("abc", 26) == ["a", "b", "c"]


@pytest.mark.parametrize("number", [2, 3, 26, 27])
def test_each_commit_is_measured_once(own: Any, number: int) -> None:
    assert sorted(own.halving(number)) == list(range(number))


def test_a_run_that_was_cut_off_has_measured_the_whole_range(own: Any) -> None:
    assert list(own.halving(9)) == [0, 8, 4, 2, 6, 1, 3, 5, 7]


def test_series_have_the_names_of_their_parameters(own: Any) -> None:
    content = asv_file(
        "c",
        {
            "harness.NextTest.track_median": [[0.5, None, 4.0], [["'plain'", "'mirrored'", "'other'"]], "1"],
            "harness.Recording.track_ratio": [[2.5], [], "1"],
            "harness.Unused.track_start_up_cost": [None, [], "1"],
        },
    )
    assert dict(own.series(content)) == {
        "NextTest.track_median(plain)": 0.5,
        "NextTest.track_median(other)": 4.0,
        "Recording.track_ratio": 2.5,
    }


def test_results_of_two_environments_are_not_joined(own: Any, tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    for environment in ("one", "other"):
        (tmp_path / f"machine/c-{environment}.json").write_text(json.dumps(asv_file("c" * 40, {})))
    with pytest.raises(SystemExit, match="two machines or environments"):
        own.results_of(tmp_path)


def test_a_commit_is_measured_if_it_has_each_benchmark_that_is_asked_for(own: Any, tmp_path: Path) -> None:
    assert not own.is_measured("c", tmp_path, "^harness")
    (tmp_path / "benchmarks.json").write_text(json.dumps({"harness.A.track": {}, "harness.B.track": {}, "version": 2}))
    assert not own.is_measured("c", tmp_path, "^harness")
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine/c-environment.json").write_text(json.dumps(asv_file("c", {"harness.A.track": [[1.0], []]})))
    assert own.is_measured("c", tmp_path, "^harness.A")
    assert not own.is_measured("c", tmp_path, "^harness")
    assert not own.is_measured("d", tmp_path, "^harness.A")


@pytest.fixture
def measured(own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of asv with two commits and two benchmarks."""
    monkeypatch.setattr(own, "git", lambda *_: "b 2026-01-01\na 2026-01-02\nc 2026-01-03\n")
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine/machine.json").write_text(json.dumps({"cpu": "two cores", "ram": "24GiB"}))
    results = {"harness.Recording.track_ratio": [[1.23456], [], "1"], "harness.Rank.track_memory": [[30.0], [], "1"]}
    for commit in "ab":
        (tmp_path / f"machine/{commit}-environment.json").write_text(json.dumps(asv_file(commit, results)))
    return tmp_path


def test_commits_are_in_the_order_of_the_branch(own: Any, measured: Path) -> None:
    published = {"machine": "two cores, 24GiB", "commits": []}
    found = own.collect(measured, "Recording", published)
    assert [(row["commit"], row["values"]) for row in found["commits"]] == [
        ("b", {"Recording.track_ratio": 1.235}),
        ("a", {"Recording.track_ratio": 1.235}),
    ]


def test_what_is_published_stays_beside_what_is_measured(own: Any, measured: Path) -> None:
    before = [{"commit": name, "date": "", "values": {"Rank.track_memory": 20.0}} for name in "ac"]
    found = own.collect(measured, "Recording", {"machine": "two cores, 24GiB", "commits": before})
    assert [(row["commit"], row["values"]) for row in found["commits"]] == [
        ("b", {"Recording.track_ratio": 1.235}),
        ("a", {"Rank.track_memory": 20.0, "Recording.track_ratio": 1.235}),
        ("c", {"Rank.track_memory": 20.0}),
    ]


def test_machines_are_not_mixed(own: Any, measured: Path) -> None:
    with pytest.raises(SystemExit, match="has measured"):
        own.collect(measured, "Recording", {"machine": "four cores, 24GiB", "commits": []})


def test_the_published_history_has_at_least_25_commits() -> None:
    commits = json.loads((ROOT / "docs/own-history.json").read_text("utf-8"))["commits"]
    assert sum("Rank.track_private_memory(mirrored)" in row["values"] for row in commits) >= 25
    assert len({row["commit"] for row in commits}) == len(commits)
