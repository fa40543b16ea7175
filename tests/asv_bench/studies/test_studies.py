"""All studies: their registry, their options, and how they end."""

from __future__ import annotations

import argparse
import json
import signal
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest

from asv_bench.studies import asynchronous, published, running
from asv_bench.studies.__main__ import main
from asv_bench.studies.registry import STUDIES
from asv_bench.studies.report import Report
from pytest_ddl import cli
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.outcome import INTERRUPTED, OK, USAGE, WRONG, UsageError
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.web.results import Table

REPORT = Report(
    study="all-reduce",
    title="A title",
    headline="A result with `code` & <signs>",
    tables=(Table("Numbers", (("a", "b"), ("1", "2"))),),
    figures={"picture": lambda figure: figure.subplots().plot([1, 2])},
    data={"cells": [1.5]},
    notes=("a note",),
    settings={"runs": "3"},
)


def test_each_study_has_a_module_with_its_options() -> None:
    names = [study.name for study in STUDIES]
    assert len(set(names)) == len(names)
    for study in STUDIES:
        module = import_module(study.module)
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        given = parser.parse_args([])
        # Otherwise two studies would write into one folder.
        assert given.output == study.name
        assert parser.parse_args(["--quick"]).quick
        assert callable(module.main)


def test_the_command_calls_the_study_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def conduct(options: argparse.Namespace, measure: Any) -> int:
        seen.append((options.workers, options.push, measure))
        return OK

    monkeypatch.setattr(asynchronous, "conduct", conduct)
    assert main(["async", "--workers", "1,3", "--push", "7"]) == OK
    assert seen == [("1,3", 7, asynchronous.run)]


@pytest.mark.parametrize("given", [["no-study"], [], ["async", "--epochs", "3"]])
def test_a_wrong_command_line_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == USAGE
    assert "usage: python -m asv_bench.studies" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("async --workers 0", "--workers=0: 0 must be 1 to 4"),
        ("async --workers 2,x", "--workers=2,x: 'x' is not a whole number; write numbers as in 1,2,4"),
        ("async --push 0", "--push=0 must be 1 to 100"),
        ("async --fetch 101", "--fetch=101 must be 1 to 100"),
        ("async --examples 100", "--examples=100 must be at least 2048"),
        ("async --delay 0", "--delay=0.0 must be above 0"),
        ("async --target -1", "--target=-1.0 must be above 0"),
        ("async --repeats 0", "--repeats=0 must be at least 1"),
        ("async --timeout 0", "--timeout=0.0 must be a positive number of seconds"),
        ("all-reduce --sizes 0", "--sizes=0: 0 must be 1 to 1073741824"),
        ("all-reduce --replicas 1", "--replicas=1: 1 must be 2 to 16"),
        ("lbfgs --shards 5", "--shards=5: 5 must be 1 to 4"),
        ("lbfgs --penalty 0", "--penalty=0.0 must be above 0"),
        ("model-parallel --devices 1", "--devices=1 must be 2 to 8"),
        ("model-parallel --batch 33", "--batch=33 cannot be split evenly over 2 devices; give a multiple of 2"),
        ("model-parallel --widths 127", "--widths: 127 cannot be split over 2 devices; give a multiple of 2"),
        ("model-parallel --device gpu", "--devices=2 --device=gpu: "),
        ("lbfgs --output /proc/x", "--output=/proc/x: nothing can be written in /proc"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    given: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(given.split()) == USAGE
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert words in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def options(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(output=str(folder), repeats=None, timeout=1.0, quick=False)


def test_everything_is_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert running.conduct(options(folder), lambda _options: REPORT) == OK
    table = (folder / "table.md").read_text()
    assert capsys.readouterr().out == table
    for words in ("# A title", "> a note", "| 1 | 2 |", "| runs | 3 |", "cores of"):
        assert words in table
    plain = json.loads((folder / "results.json").read_text())
    assert (plain["study"], plain["cells"], plain["notes"][-1]) == ("all-reduce", [1.5], "a note")
    assert plain["machine"]["cores"]
    assert "<svg" in (folder / "picture.svg").read_text()
    page = (folder / "index.html").read_text()
    assert page.count('src="data:image/svg+xml;base64,') == 1
    assert "&lt;signs&gt;" in page


def test_hosts_that_cannot_be_used_are_named_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(_options: argparse.Namespace) -> NoReturn:
        raise LaunchError("the host b does not answer")

    assert running.conduct(options(tmp_path / "out"), measure) == WRONG
    told = capsys.readouterr().err
    assert told == "error: nothing was measured: the host b does not answer\n"


def test_a_wrong_result_is_written_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replace(REPORT, problem="sums are wrong")
    assert running.conduct(options(tmp_path / "out"), lambda _options: found) == WRONG
    assert "error: sums are wrong" in capsys.readouterr().err
    assert (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (BenchError("worker:1 died"), WRONG, "nothing was measured: worker:1 died"),
        (UsageError("--workers=0 is wrong"), USAGE, "error: --workers=0 is wrong"),
    ],
)
def test_an_error_leaves_no_folder(
    error: Exception, status: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_options: argparse.Namespace) -> Report:
        raise error

    assert running.conduct(options(tmp_path / "out"), measure) == status
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    def measure(_options: argparse.Namespace) -> Report:
        signal.raise_signal(number)
        return REPORT

    before = signal.getsignal(number)
    assert running.conduct(options(tmp_path / "out"), measure) == INTERRUPTED
    assert signal.getsignal(number) is before
    assert not (tmp_path / "out").exists()


def test_publications_without_a_verified_number_say_so() -> None:
    table = published.published_table((published.LARGER, published.DOWNPOUR), "measured", [("data", "a", "b")])
    _head, first, second, last = table.rows
    assert "30 times" in first[1]
    assert "no number was verified" not in first[1]
    assert "no number was verified" in second[1]
    assert (first[2], second[2], last) == ("measured", "as above", ("data", "a", "b"))
    entries = [one for one in vars(published).values() if isinstance(one, published.Publication)]
    assert all(one.has_number == any(sign.isdigit() for sign in one.says) for one in entries)


def test_the_command_of_users_says_how_to_run_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "async", "--quick"]) == USAGE
    assert capsys.readouterr().err.endswith("run this in it: python -m asv_bench.studies async --quick\n")
