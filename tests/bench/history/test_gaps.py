"""Gaps are reported: series that end, shallow clones, two machines of one name. A complete history is not."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.bench.git import GitLog, read_log
from pytest_ddl.bench.history.meaning import workload
from pytest_ddl.bench.history.model import History, HistoryProblem
from pytest_ddl.bench.history.read import read_results
from pytest_ddl.bench.outcome import UsageError
from tests.bench.history.synthetic import DAY, START, Bench, commit_hashes, repository, write_results

STEP, COUNT = "training.Gate.track_step_time", "training.Gate.track_collectives"
PARAMETERS = {"strategy": ["mirrored"], "replicas": [1, 2]}
COUNTED = {"deterministic": True, "higher_is_better": False}


def bench(name: str = STEP, value: Any = lambda _n, _c: 0.02, **more: Any) -> Bench:
    return Bench(name, "seconds", more.pop("parameters", PARAMETERS), value, **more)


def until(commit: int, then: float | None = math.nan, value: float = 1.0) -> Any:
    return lambda number, _choice: value if number < commit else then


def only(history: History, kind: str) -> HistoryProblem:
    (found,) = history.problems
    assert found.kind == kind
    return found


def dates(count: int, start: int = 0) -> list[int]:
    return [START + (start + number) * DAY for number in range(count)]


def drop_rows(folder: Path, commit: str, name: str) -> None:
    (path,) = (folder / "runner").glob(f"{commit[:8]}-*.json")
    data = json.loads(path.read_text())
    del data["results"][name]
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("last", [5, 9])
def test_counters_that_are_not_available_any_more_are_gone(tmp_path: Path, last: int) -> None:
    """A step that became eager has no counters: the number that would have said so is what is missing."""
    commits = commit_hashes(10)
    folder = write_results(tmp_path, [bench(), bench(COUNT, until(last), attributes=COUNTED)], commits)
    problem = only(read_results(folder), "gone")
    assert problem.error
    assert (
        f"2 series on runner (virtualenv-py3.11-tensorflow-cpu) are gone since {commits[last][:8]}" in problem.message
    )
    assert commits[last - 1][:8] in problem.message
    assert "n/a now" in problem.message
    assert "eager" in problem.message


def test_what_the_newest_results_do_not_have_is_gone(tmp_path: Path) -> None:
    commits = commit_hashes(6)
    folder = write_results(tmp_path, [bench(), bench(COUNT)], commits)
    drop_rows(folder, commits[-1], COUNT)
    problem = only(read_results(folder), "gone")
    assert "were not run" in problem.message
    drop_rows(folder, commits[-1], STEP)
    assert "4 series" in only(read_results(folder), "gone").message


def test_it_stays_the_same_gap_while_nothing_else_ends(tmp_path: Path) -> None:
    commits = commit_hashes(12)
    first = only(read_results(write_results(tmp_path / "a", [bench(), bench(COUNT, until(5))], commits[:8])), "gone")
    later = only(read_results(write_results(tmp_path / "b", [bench(), bench(COUNT, until(5))], commits)), "gone")
    assert first.id == later.id


@pytest.mark.parametrize(
    "value",
    [
        until(0),  # never measurable here, as memory of a GPU without one
        lambda number, _choice: math.nan if 3 <= number < 6 else 1.0,  # back again
        lambda number, _choice: math.nan if number < 6 else 1.0,  # measurable since then
        until(99),
    ],
)
def test_what_never_was_or_is_back_is_no_gap(tmp_path: Path, value: Any) -> None:
    assert not read_results(write_results(tmp_path, [bench(), bench(COUNT, value)], commit_hashes(10))).problems


def test_what_failed_last_is_reported_as_a_failure_only(tmp_path: Path) -> None:
    folder = write_results(tmp_path, [bench(), bench(COUNT, until(9, None))], commit_hashes(10))
    assert only(read_results(folder), "failed").error


def test_one_cause_is_reported_once_for_all_benchmarks_of_a_suite(tmp_path: Path) -> None:
    names = [f"training.Gate.track_{letter}" for letter in "abcdefg"]
    commits = commit_hashes(6)

    def told(folder: str, kind: str, **made: Any) -> HistoryProblem:
        benches = [bench(), *(bench(name, **made) for name in names)]
        return only(read_results(write_results(tmp_path / folder, benches, commits)), kind)

    failed = told("failed", "failed", value=until(5, None))
    assert failed.message.startswith("7 benchmarks, training.Gate.track_a, training.Gate.track_b")
    assert "track_f" not in failed.message
    assert "(14 combinations, such as training.Gate.track_a(mirrored, 1))" in failed.message
    assert told("cut", "cut", version=lambda number: "old" if number < 4 else "new").message.startswith(
        "the history of 7 benchmarks, training.Gate.track_a"
    )
    assert told("removed", "removed", known=False).message.startswith("7 benchmarks, training.Gate.track_a")


def test_combinations_that_a_suite_lost_are_reported_once(tmp_path: Path) -> None:
    names, commits = [f"training.Gate.track_{letter}" for letter in "abc"], commit_hashes(6)
    write_results(tmp_path, [bench(name) for name in names], commits[:4], dates=dates(4))
    now = [bench(name, parameters={"strategy": ["mirrored"], "replicas": [1]}) for name in names]
    problem = only(read_results(write_results(tmp_path, now, commits[4:], dates=dates(2, 4))), "removed")
    assert problem.message.startswith("3 benchmarks, training.Gate.track_a, training.Gate.track_b")
    assert "longer exist: training.Gate.track_a(mirrored, 2) (" in problem.message


def test_another_benchmark_that_fails_too_is_another_problem(tmp_path: Path) -> None:
    ids = []
    for names in ("a", "ab"):
        benches = [bench(), *(bench(f"training.Gate.track_{letter}", until(5, None)) for letter in names)]
        ids.append(only(read_results(write_results(tmp_path / names, benches, commit_hashes(6))), "failed").id)
    assert ids[0] != ids[1]


def test_a_suite_that_was_removed_is_not_gone_but_removed(tmp_path: Path) -> None:
    commits = commit_hashes(6)
    folder = write_results(tmp_path, [bench(), bench(COUNT, known=False)], commits)
    drop_rows(folder, commits[-1], COUNT)
    assert "track_collectives" in only(read_results(folder), "removed").message


def test_a_combination_that_was_removed_is_said(tmp_path: Path) -> None:
    commits = commit_hashes(6)
    write_results(tmp_path, [bench()], commits[:4], dates=dates(4))
    now = [bench(parameters={"strategy": ["mirrored"], "replicas": [1]})]
    problem = only(read_results(write_results(tmp_path, now, commits[4:], dates=dates(2, 4))), "removed")
    assert f"{STEP}(mirrored, 2)" in problem.message
    assert f"{STEP}(mirrored, 1)" not in problem.message


def test_an_edited_benchmark_is_cut_and_not_gone(tmp_path: Path) -> None:
    commits = commit_hashes(6)
    now = bench(version=lambda number: "b" if number == 4 else "a")
    assert only(read_results(write_results(tmp_path, [now], commits)), "cut").error


def test_a_machine_that_has_not_come_to_the_newest_commit_has_lost_nothing(tmp_path: Path) -> None:
    commits = commit_hashes(8)
    write_results(tmp_path, [bench()], commits[:5], machine="laptop")
    problem = only(read_results(write_results(tmp_path, [bench()], commits)), "behind")
    assert not problem.error
    assert "laptop" in problem.message
    assert commits[4][:8] in problem.message


def test_results_of_another_machine_do_not_fill_a_gap(tmp_path: Path) -> None:
    commits = commit_hashes(8)
    write_results(tmp_path, [bench(), bench(COUNT)], commits, machine="laptop")
    problem = only(read_results(write_results(tmp_path, [bench(), bench(COUNT, until(5))], commits)), "gone")
    assert "on runner" in problem.message


def test_an_unreadable_newest_file_is_broken_alone(tmp_path: Path) -> None:
    commits = commit_hashes(4)
    folder = write_results(tmp_path, [bench()], commits)
    next((folder / "runner").glob(f"{commits[-1][:8]}-*.json")).write_text("{")
    assert only(read_results(folder), "broken").error


def test_a_shallow_clone_is_no_history(tmp_path: Path) -> None:
    commits = repository(tmp_path / "project", 6)
    folder = write_results(tmp_path / "results", [bench()], commits, dates=dates(6))
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "2", f"file://{tmp_path / 'project'}", str(clone)], check=True)
    history = read_results(folder, read_log(clone, "main"))
    problem = only(history, "shallow")
    assert problem.error
    assert "4 commits with results" in problem.message
    assert "fetch-depth: 0" in problem.message


def test_a_shallow_clone_that_has_all_measured_commits_is_fine(tmp_path: Path) -> None:
    commits = commit_hashes(3)
    folder = write_results(tmp_path, [bench()], commits)
    assert not read_results(folder, GitLog(tuple((name, "") for name in commits), shallow=True)).problems


def test_a_branch_without_results_is_nothing_to_read(tmp_path: Path) -> None:
    folder = write_results(tmp_path, [bench()], commit_hashes(3))
    with pytest.raises(UsageError, match=r"not on the branch.*--branch"):
        read_results(folder, GitLog((("f" * 40, "another"),)))


def test_two_folders_of_one_machine_are_not_mixed(tmp_path: Path) -> None:
    commits = commit_hashes(8)
    write_results(tmp_path, [bench()], commits)
    write_results(tmp_path, [bench(value=lambda _n, _c: 0.04)], commits, machine="other")
    facts = tmp_path / "other" / "machine.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "machine": "runner"}))
    history = read_results(tmp_path)
    problem = only(history, "broken")
    assert "other/machine.json" in problem.message
    assert "runner" in problem.message
    values = {one.machine: {point.value for point in one.points} for one in history.series}
    assert values == {"runner": {0.02}, "other": {0.04}}


def test_a_folder_may_have_another_name_than_its_machine(tmp_path: Path) -> None:
    (write_results(tmp_path, [bench()], commit_hashes(3)) / "runner").rename(tmp_path / "archive")
    history = read_results(tmp_path)
    assert not history.problems
    assert set(history.machines) == {"runner"}


def test_suites_of_one_name_in_two_modules_are_two_workloads(tmp_path: Path) -> None:
    names = ("vision.GateCnn.track_step_time", "vision.DashCnn.track_throughput", "text.GateCnn.track_step_time")
    history = read_results(write_results(tmp_path, [bench(name) for name in names], commit_hashes(3)))
    found = {one.benchmark.name: workload(one) for one in history.series}
    assert found == dict(zip(names, ("vision.Cnn", "vision.Cnn", "text.Cnn"), strict=True))
    alone = read_results(write_results(tmp_path / "b", [bench(name) for name in names[:2]], commit_hashes(3)))
    assert {workload(one) for one in alone.series} == {"Cnn"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("date", None), ("date", "x"), ("date", 10**20), ("commit_hash", ["a"]), ("commit_hash", 5),
        ("results", [1]), ("results", {STEP: None}), ("results", {STEP: [[10**400] * 2, [["'mirrored'"], ["1", "2"]]]}),
        ("result_columns", 5),
    ],
)  # fmt: skip
def test_values_of_a_wrong_kind_are_named(tmp_path: Path, key: str, value: Any) -> None:
    folder = write_results(tmp_path, [bench()], commit_hashes(4))
    path = sorted((folder / "runner").glob("*-*.json"))[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    history = read_results(folder)
    assert path.name in only(history, "broken").message
    assert {len(one.points) for one in history.series} == {3}


@pytest.mark.parametrize("key", ["param_names", "params"])
@pytest.mark.parametrize("value", [5, "strategy", None])
def test_a_benchmark_of_a_wrong_shape_is_named_and_its_results_are_kept(tmp_path: Path, key: str, value: Any) -> None:
    folder = write_results(tmp_path, [bench()], commit_hashes(3))
    path = folder / "benchmarks.json"
    data = json.loads(path.read_text())
    data[STEP][key] = value
    path.write_text(json.dumps(data))
    history = read_results(folder)
    assert STEP in only(history, "broken").message
    assert {len(one.points) for one in history.series} == {3}
