"""``pytest-ddl history``: exit status, words, annotations, and the files it writes."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.bench.history.confirm import Confirm
from pytest_ddl.bench.history.detect import ChangeVerdict
from pytest_ddl.bench.history.model import Series
from pytest_ddl.bench.outcome import FAILED, INCOMPLETE, INTERRUPTED, OK, USAGE, WRONG
from pytest_ddl.commands import history as command
from pytest_ddl.github import annotation
from pytest_ddl.installing import install_line
from tests.bench.history.synthetic import Bench, commit_hashes, noisy, repository, write_results

STEP = "training.Gate.track_step_time"
PARAMETERS = {"strategy": ["mirrored"], "replicas": [2]}


def results(folder: Path, size: float = 0.1, **more: Any) -> Path:
    value = noisy(lambda number: 0.02 * (1 + size if number >= 20 else 1), 0.01, 1)
    bench = Bench(STEP, "seconds", PARAMETERS, lambda number, _choice: value(number), **more)
    return write_results(folder / "results", [bench], commit_hashes(30))


def run(*arguments: str, confirm: Confirm | None = None) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(arguments), confirm)


def given(folder: Path, *more: str) -> list[str]:
    return ["--results", str(folder / "results"), "--html", str(folder / "html"), *more]


def says(status: Any) -> Confirm:
    def confirm(_before: str, _after: str, _series: Series) -> ChangeVerdict:
        return ChangeVerdict(status, "re-run: 6 launches", 0.1)

    return confirm


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def test_a_flat_history_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results(tmp_path, 0.0)
    assert run(*given(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "no confirmed regression" in out
    assert (tmp_path / "html" / "scaling" / "index.html").is_file()


def test_a_candidate_that_was_not_re_run_alerts_nobody_and_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(tmp_path)
    assert run(*given(tmp_path)) == 0
    out = capsys.readouterr().out
    assert f"to be confirmed: training on runner, after {commit_hashes(30)[19][:8]}" in out
    assert "+10." in out or "+9." in out
    assert "--confirm" in out


@pytest.mark.parametrize(("status", "exit_status"), [("confirmed", 1), ("refuted", 0), ("unconfirmed", 0)])
def test_a_re_run_decides(tmp_path: Path, status: str, exit_status: int) -> None:
    results(tmp_path)
    assert run(*given(tmp_path), confirm=says(status)) == exit_status


def test_reruns_are_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results(tmp_path)
    assert run(*given(tmp_path, "--max-reruns", "0"), confirm=says("confirmed")) == 0
    assert "left for the next call" in capsys.readouterr().out


def test_a_faster_step_is_fine(tmp_path: Path) -> None:
    results(tmp_path, -0.1)
    assert run(*given(tmp_path), confirm=says("confirmed")) == 0


def test_a_confirmed_regression_is_said_every_time_without_another_re_run(tmp_path: Path) -> None:
    results(tmp_path)
    assert run(*given(tmp_path), confirm=says("confirmed")) == 1
    assert run(*given(tmp_path)) == 1
    assert (tmp_path / "results" / "confirmations.jsonl").is_file()


def test_what_was_accepted_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results(tmp_path)
    path = tmp_path / "found.json"
    assert run(*given(tmp_path, "--json", str(path)), confirm=says("confirmed")) == 1
    found = json.loads(path.read_text())
    (regression,) = found["regressions"]
    assert regression["effect"] == pytest.approx(0.1, abs=0.02)
    assert regression["verdict"] == "confirmed"
    assert regression["last_before"] in commit_hashes(30)
    assert run(*given(tmp_path, "--accept", regression["id"], "--accept", "r-unknown")) == 0
    assert "--accept r-unknown is no longer a change" in capsys.readouterr().out


def test_a_cut_history_has_its_own_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results(tmp_path, 0.0, version=lambda number: "old" if number < 20 else "new")
    path = tmp_path / "found.json"
    assert run(*given(tmp_path, "--json", str(path))) == 3
    assert "INCOMPLETE" in capsys.readouterr().out
    (problem,) = json.loads(path.read_text())["problems"]
    assert problem["kind"] == "cut"
    assert run(*given(tmp_path, "--accept", problem["id"])) == 0


def test_github_is_told_what_alerts_and_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results(tmp_path)
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run(*given(tmp_path))
    out = capsys.readouterr().out
    # A comma would end the title.
    assert "::notice title=Performance candidate%2C not confirmed::" in out
    assert "::error" not in out
    run(*given(tmp_path), confirm=says("confirmed"))
    assert "::error title=Performance regression::" in capsys.readouterr().out
    assert "### Confirmed regressions" in summary.read_text()


def test_annotations_are_one_line_each() -> None:
    assert (
        annotation("notice", "a: 5 %, b", "5 %\nmore, or: less")
        == "::notice title=a%3A 5 %25%2C b::5 %25%0Amore, or: less\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "asv.conf.json"),
        (["--config", "missing.json"], "--config=missing.json is not a file"),
        (["--results", "nowhere"], "no folder of results"),
        (["--results", "results", "--publish"], "--publish needs"),
        (["--results", "results", "--confirm"], "--repository"),
        (["--results", "results", "--repository", "."], "git log"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    results(tmp_path)
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


def test_asv_configuration_says_where_things_are(tmp_path: Path) -> None:
    commits = repository(tmp_path / "project", 12)
    value = noisy(lambda _number: 0.02, 0.01, 1)
    bench = Bench(STEP, "seconds", PARAMETERS, lambda number, _choice: value(number))
    write_results(tmp_path / "bench" / "out", [bench], commits)
    configuration = tmp_path / "bench" / "asv.conf.json"
    configuration.write_text(
        '{"version": 1, /* as asv allows */ "project": "P", "repo": "../project", "branches": ["main"],'
        '"results_dir": "out", "html_dir": "pages"}'
    )
    assert run("--config", str(configuration)) == 0
    page = (tmp_path / "bench" / "pages" / "scaling" / "index.html").read_text(encoding="utf-8")
    assert f"https://github.com/example/project/commit/{commits[-1]}" in page
    assert "Change number 12" in page


def test_without_a_detector_the_page_is_written_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    results(tmp_path)
    path = tmp_path / "found.json"
    assert run(*given(tmp_path, "--json", str(path))) == 3
    assert install_line("bench") in capsys.readouterr().out
    assert [one["kind"] for one in json.loads(path.read_text())["problems"]] == ["unsearched"]
    assert "pip install" in (tmp_path / "html" / "scaling" / "index.html").read_text(encoding="utf-8")
    assert run(*given(tmp_path, "--no-detect")) == 0


def test_a_confirmed_regression_is_not_lost_in_green_without_a_detector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(tmp_path)
    assert run(*given(tmp_path), confirm=says("confirmed")) == 1
    monkeypatch.setitem(sys.modules, "ruptures", None)
    assert run(*given(tmp_path)) == 3


def test_counters_need_no_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    step = Bench(STEP, "seconds", PARAMETERS, lambda _n, _c: 0.02)
    count = Bench("training.Gate.track_collectives", "", PARAMETERS, lambda number, _c: 1.0 if number < 20 else 2.0)
    write_results(tmp_path / "results", [step, count], commit_hashes(30))
    assert run(*given(tmp_path)) == 1


def test_intervals_over_launches_need_scipy_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    bench = Bench(STEP, "seconds", PARAMETERS, lambda _n, _c: [0.02, 0.021] * 3, attributes={"launches": 3})
    write_results(tmp_path / "results", [bench], commit_hashes(3))
    assert run(*given(tmp_path)) == 2
    assert install_line("bench") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--html", "file"], "--html="),
        (["--html", "file/below"], "--html="),
        (["--json", "missing/found.json"], "there is no folder"),
        (["--json", "results"], "--json=results"),
    ],
)
def test_what_cannot_be_written_is_named_before_anything_is_re_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    results(tmp_path)
    (tmp_path / "file").touch()

    def unasked(*_: object) -> ChangeVerdict:
        raise AssertionError("re-run")

    assert run("--results", "results", *arguments, confirm=unasked) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RuntimeError("a defect"), 4, "RuntimeError: a defect"),
        (ImportError("no such module"), 4, "ImportError"),
        (OSError(28, "No space left on device"), 4, "No space left"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_no_error_has_the_status_of_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, words: str
) -> None:
    results(tmp_path)

    def failing(*_: object) -> ChangeVerdict:
        raise error

    assert run(*given(tmp_path), confirm=failing) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_cancelled_re_run_can_remove_what_it_made(tmp_path: Path, number: signal.Signals) -> None:
    results(tmp_path)
    removed = []

    def cancelled(*_: object) -> ChangeVerdict:
        try:
            signal.raise_signal(number)
        finally:
            removed.append(number)
        raise AssertionError

    assert run(*given(tmp_path), confirm=cancelled) == INTERRUPTED
    assert removed == [number]


def test_a_history_that_is_not_on_the_branch_is_nothing_to_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(tmp_path)
    repository(tmp_path / "project", 2)
    assert run(*given(tmp_path, "--repository", str(tmp_path / "project"))) == 2
    assert "--branch" in capsys.readouterr().err


def test_a_gone_series_has_the_status_of_a_gap_and_can_be_accepted(tmp_path: Path) -> None:
    benches = [
        Bench(STEP, "seconds", PARAMETERS, lambda _n, _c: 0.02),
        Bench("training.Gate.track_nodes", "", PARAMETERS, lambda number, _c: 5.0 if number < 20 else math.nan),
    ]
    write_results(tmp_path / "results", benches, commit_hashes(30))
    path = tmp_path / "found.json"
    assert run(*given(tmp_path, "--json", str(path))) == 3
    (problem,) = json.loads(path.read_text())["problems"]
    assert problem["kind"] == "gone"
    assert run(*given(tmp_path, "--accept", problem["id"])) == 0


def test_verdicts_that_cannot_be_read_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results(tmp_path, 0.0) / "confirmations.jsonl").write_bytes(b"\xff\xfe\n<<<<<<< ours\n")
    assert run(*given(tmp_path)) == 0
    assert "2 lines of" in capsys.readouterr().out


def test_the_statuses_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "history.md").read_text(encoding="utf-8")
    table = page.partition("| exit status |")[2].partition("\n\n")[0]
    documented = {int(row.split("|")[1]) for row in table.splitlines() if row.split("|")[1:2] and row[2:3].isdigit()}
    told = {int(line.split()[0]) for line in command.EPILOG.splitlines() if line[2:3].isdigit()}
    assert documented == told == {OK, WRONG, USAGE, INCOMPLETE, FAILED, INTERRUPTED}


@pytest.mark.slow
def test_asv_publishes_and_the_page_lies_beside(tmp_path: Path) -> None:
    pytest.importorskip("asv")
    commits = repository(tmp_path / "project", 10)
    value = noisy(lambda _number: 0.02, 0.01, 1)
    bench = Bench(STEP, "seconds", PARAMETERS, lambda number, _choice: value(number))
    write_results(tmp_path / "results", [bench], commits)
    configuration = {
        "version": 1, "project": "P", "repo": "project", "branches": ["main"], "environment_type": "existing",
        "pythons": ["same"], "benchmark_dir": "benchmarks", "results_dir": "results", "html_dir": "html",
    }  # fmt: skip
    (tmp_path / "asv.conf.json").write_text(json.dumps(configuration))
    assert run("--publish") == 0
    assert (tmp_path / "html" / "index.html").is_file()
    assert list((tmp_path / "html" / "graphs").rglob("*track_step_time*"))
    assert "../index.html" in (tmp_path / "html" / "scaling" / "index.html").read_text(encoding="utf-8")
