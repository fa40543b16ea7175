"""asv's results become series; results that asv would leave out are reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.bench.git import GitError, GitLog, commit_url, read_log
from pytest_ddl.bench.history.model import History, plain
from pytest_ddl.bench.history.read import between_launches, read_results
from pytest_ddl.bench.outcome import UsageError
from tests.bench.history.synthetic import Bench, commit_hashes, repository, write_results

STEP = "training.Gate.track_step_time"


def constant(number: int, _choice: tuple[Any, ...]) -> float:
    return 0.02 + number / 1000


def step_bench(value: Any = constant, **more: Any) -> Bench:
    parameters = {"strategy": ["one_device", "mirrored"], "replicas": [1, 2]}
    return Bench(STEP, "seconds", parameters, value, **more)


def kinds(history: History) -> list[str]:
    return [problem.kind for problem in history.problems]


def test_each_combination_of_parameters_is_a_series_over_commits(tmp_path: Path) -> None:
    commits = commit_hashes(5)
    history = read_results(write_results(tmp_path, [step_bench()], commits, facts={"gpu": "H100"}))
    assert len(history.series) == 4
    one = next(series for series in history.series if dict(series.parameters).get("strategy") == "mirrored")
    assert one.label == f"{STEP}(mirrored, 1)"
    assert [point.value for point in one.points] == [0.02, 0.021, 0.022, 0.023, 0.024]
    assert [point.commit.hash for point in one.points] == commits
    assert one.machine == "runner"
    assert history.machines["runner"].facts["gpu"] == "H100"
    assert not history.problems


def test_what_is_read_is_what_asv_reads(tmp_path: Path) -> None:
    results = pytest.importorskip("asv.results")
    commits = commit_hashes(3)
    folder = write_results(tmp_path, [step_bench(lambda n, c: [0.02 + n / 1000 + c[1] / 10] * 3)], commits)
    history = read_results(folder)
    values = {(one.label, point.commit.hash): point.value for one in history.series for point in one.points}
    seen = 0
    for loaded in results.iter_results(str(folder)):
        params = loaded.get_result_params(STEP)
        assert params == [["'one_device'", "'mirrored'"], ["1", "2"]]
        found = loaded.get_result_value(STEP, params)
        labels = [f"{STEP}({name}, {count})" for name in ("one_device", "mirrored") for count in (1, 2)]
        for label, value in zip(labels, found, strict=True):
            assert values[label, loaded.commit_hash] == value
            seen += 1
    assert seen == len(values) == 12


def test_failures_are_gaps_and_skipped_combinations_are_nothing(tmp_path: Path) -> None:
    def value(number: int, choice: tuple[Any, ...]) -> float | None:
        if choice == ("one_device", 2):
            return math.nan
        return None if number == 1 else 0.02

    history = read_results(write_results(tmp_path, [step_bench(value)], commit_hashes(3)))
    found = {one.label: one for one in history.series}
    assert not found[f"{STEP}(one_device, 2)"].points
    one = found[f"{STEP}(mirrored, 2)"]
    assert (len(one.points), len(one.failed)) == (2, 1)
    assert not history.problems


def test_a_failure_at_the_newest_commit_is_said(tmp_path: Path) -> None:
    folder = write_results(tmp_path, [step_bench(lambda n, _c: None if n == 2 else 0.02)], commit_hashes(3))
    history = read_results(folder)
    assert kinds(history) == ["failed"]
    assert history.problems[0].error
    assert "failed at the newest commit" in history.problems[0].message


def test_an_edited_benchmark_does_not_cut_the_history_silently(tmp_path: Path) -> None:
    commits = commit_hashes(6)
    bench = step_bench(version=lambda number: "aaaa1111" if number < 4 else "bbbb2222")
    history = read_results(write_results(tmp_path, [bench], commits))
    (problem,) = history.problems
    assert (problem.kind, problem.error) == ("cut", True)
    assert "4 commits" in problem.message
    assert "aaaa1111" in problem.message
    assert "2 commits are left" in problem.message
    assert f"{commits[0][:8]}..{commits[3][:8]}" in problem.message
    assert all(len(one.points) == 2 and len(one.dropped) == 4 for one in history.series)


def test_asv_does_drop_what_is_called_cut(tmp_path: Path) -> None:
    results = pytest.importorskip("asv.results")
    bench = step_bench(version=lambda number: "old" if number < 4 else "new")
    folder = write_results(tmp_path, [bench], commit_hashes(6))
    known = {
        name: entry for name, entry in json.loads((folder / "benchmarks.json").read_text()).items() if name == STEP
    }
    kept = [loaded for loaded in results.iter_results(str(folder)) if STEP in loaded.get_result_keys(known)]
    assert len(kept) == 2


def test_a_pinned_version_keeps_the_history(tmp_path: Path) -> None:
    history = read_results(write_results(tmp_path, [step_bench(version="1")], commit_hashes(6)))
    assert not history.problems


def test_a_renamed_benchmark_is_said(tmp_path: Path) -> None:
    gone = Bench("training.Gate.track_old", "seconds", {}, lambda _n, _c: 1.0, known=False)
    history = read_results(write_results(tmp_path, [step_bench(), gone], commit_hashes(3)))
    assert kinds(history) == ["removed"]
    assert "track_old" in history.problems[0].message
    assert "benchmark_name" in history.problems[0].message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{ not json", "cannot be read"),
        ("[]", "holds a list"),
        ('{"version": 1}', "asv update"),
        ('{"version": 2, "commit_hash": "a"}', "has no date, results, result_columns"),
    ],
)
def test_a_broken_file_is_named_and_the_rest_is_read(tmp_path: Path, content: str, words: str) -> None:
    folder = write_results(tmp_path, [step_bench()], commit_hashes(3))
    (folder / "runner" / "broken-env.json").write_text(content)
    history = read_results(folder)
    assert kinds(history) == ["broken"]
    assert "broken-env.json" in history.problems[0].message
    assert words in history.problems[0].message
    assert all(len(one.points) == 3 for one in history.series)


def test_results_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = write_results(tmp_path, [step_bench()], commit_hashes(3))
    path = next(path for path in sorted((folder / "runner").glob("*-*.json")))
    data = json.loads(path.read_text())
    data["results"][STEP][0] = [1.0]
    path.write_text(json.dumps(data))
    history = read_results(folder)
    assert kinds(history) == ["broken"]
    assert path.name in history.problems[0].message


def test_without_its_machine_file_a_folder_is_read_and_said(tmp_path: Path) -> None:
    folder = write_results(tmp_path, [step_bench()], commit_hashes(3))
    (folder / "runner" / "machine.json").unlink()
    history = read_results(folder)
    assert kinds(history) == ["broken"]
    assert history.series


def test_without_results_there_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--results"):
        read_results(tmp_path / "none")
    with pytest.raises(UsageError, match="asv run"):
        read_results(tmp_path)


def test_the_branch_orders_commits_and_others_are_left_out(tmp_path: Path) -> None:
    commits = commit_hashes(4)
    folder = write_results(tmp_path, [step_bench()], commits, dates=[5, 5, 5, 5])
    log = GitLog(tuple((name, f"about {index}") for index, name in enumerate([commits[2], commits[0], commits[1]])))
    history = read_results(folder, log)
    assert [commit.hash for commit in history.commits] == [commits[2], commits[0], commits[1]]
    assert history.commits[0].subject == "about 0"
    assert kinds(history) == ["outside"]
    assert commits[3][:8] in history.problems[0].message
    assert not history.problems[0].error


def test_another_environment_splits_the_history(tmp_path: Path) -> None:
    commits = commit_hashes(6)
    write_results(tmp_path, [step_bench()], commits[:3], environment="existing-a", dates=[1, 2, 3])
    history = read_results(
        write_results(tmp_path, [step_bench()], commits[3:], environment="existing-b", dates=[4, 5, 6])
    )
    assert kinds(history) == ["split"]
    assert "existing-a, then existing-b" in history.problems[0].message


def test_two_environments_at_once_are_no_split(tmp_path: Path) -> None:
    commits = commit_hashes(3)
    write_results(tmp_path, [step_bench()], commits, environment="tf-a")
    assert not read_results(write_results(tmp_path, [step_bench()], commits, environment="tf-b")).problems


def test_the_interval_is_over_launches_where_they_are_known(tmp_path: Path) -> None:
    samples = [1.0, 1.01, 1.02] * 2 + [1.2, 1.21, 1.22] * 2
    bench = step_bench(lambda _n, _c: samples, attributes={"launches": 2})
    point = read_results(write_results(tmp_path, [bench], commit_hashes(1))).series[0].points[0]
    assert point.basis == "launches"
    assert point.high is not None
    assert point.low is not None
    # Two launches that differ by 20 % say very little; the samples without their launches would say ±1 %.
    assert point.high - point.low > 1
    plain_bench = step_bench(lambda _n, _c: samples)
    other = read_results(write_results(tmp_path / "b", [plain_bench], commit_hashes(1))).series[0].points[0]
    assert other.basis == "samples"


def test_the_interval_is_that_of_students_t() -> None:
    low, high = between_launches(10.0, [9.0, 9.0, 10.0, 10.0, 11.0, 11.0], 3)
    assert (high - low) / 2 == pytest.approx(4.302653 * 1.0 / math.sqrt(3), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "said"), [("'mirrored'", "mirrored"), ("2", "2"), ('"a\'b"', "a'b"), ("<class 'm.C'>", "m.C")]
)
def test_parameters_are_written_as_people_do(text: str, said: str) -> None:
    assert plain(text) == said


def test_git_tells_order_and_subjects(tmp_path: Path) -> None:
    commits = repository(tmp_path / "repo", 3)
    log = read_log(tmp_path / "repo", "main")
    assert log.commits == tuple((name, f"Change number {index + 1}") for index, name in enumerate(commits))
    assert commit_url(tmp_path / "repo") == "https://github.com/example/project/commit/"
    with pytest.raises(GitError, match="nowhere"):
        read_log(tmp_path / "repo", "nowhere")
