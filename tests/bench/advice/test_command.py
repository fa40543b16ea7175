"""The command: wrong options in one line, an evaluation read, and the exit status of each outcome."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl import cli
from pytest_ddl.bench.advice import confirming
from pytest_ddl.bench.advice.confirming import Confirmation
from pytest_ddl.bench.advice.facts.evidence import evidence_of, read
from pytest_ddl.bench.advice.facts.gains import Gain
from pytest_ddl.bench.outcome import FAILED, INCOMPLETE, INTERRUPTED, OK, USAGE, WRONG, UsageError
from pytest_ddl.commands import advise as command
from pytest_ddl.target import Target
from tests.bench.advice.evidence_made import evidence
from tests.bench.made import matrix

TRAIN = "def train(run):\n    raise RuntimeError('it must not be imported here')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_train.py").write_text(TRAIN)
    measured = matrix({"one_device": [0.01, 0.0101], "mirrored[replicas=2]": [0.015, 0.0151]})
    measured.save(tmp_path / "matrix.json")
    (tmp_path / "evaluation.json").write_text(json.dumps({"format": 1, "matrix": measured.as_json()}))
    (tmp_path / "other.json").write_text('{"rows": []}')
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "empty.json").write_text(json.dumps(matrix({}).as_json()))
    return tmp_path


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([*given])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["own_train.py:trian"], "own_train.py has no 'trian' (did you mean 'train'?)"),
        (["absent:train"], "there is no module 'absent' here or installed"),
        (["own_train"], "must name a function as MODULE:FUNCTION"),
        (["absent.json"], "absent.json cannot be read: No such file or directory"),
        (["text.json"], "text.json is not JSON: Expecting value"),
        (
            ["other.json"],
            "other.json has no launches (Matrix lacks the field 'launches'): give a file",
        ),
        (["empty.json"], "empty.json has no launches: nothing was measured"),
        (["matrix.json", "evaluation.json"], "give one evaluation, one training function, or one of each"),
        (["matrix.json", "--after", "own_train:train"], "--after=own_train:train: give the training function without"),
        (["matrix.json", "--batch-per-replica", "4"], "need a training function to measure"),
        (["own_train:train", "--batch-per-replica=4", "--global-batch-size=4"], "give one of them"),
        (["own_train:train", "--launches", "1"], "--launches=1: an interval needs at least 2; 0 measures nothing"),
        (["own_train:train", "--strategy", "miror"], "--strategy=miror: "),
        (["own_train:train", "--strategy", "parameter_server"], "its workers do not step together"),
        (["own_train:train", "--strategy", ","], "--strategy=,: give at least one strategy"),
        (["own_train:train", "--json", "absent/x.json"], "--json=absent/x.json: there is no folder"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    given: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(options(*given)) == USAGE
    told = capsys.readouterr().err
    assert told.startswith("pytest-ddl advise: error: ")
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("file", ["matrix.json", "evaluation.json"])
def test_an_evaluation_is_read(file: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", file, "--json", "advice.json"]) == OK
    out = capsys.readouterr().out
    assert "strategy: mirrored[replicas=2], because: 4253 examples/s" in out
    assert "one_device has 3184" in out
    data = json.loads((folder / "advice.json").read_text())
    assert data["strategy"] == "mirrored[replicas=2]"
    assert "slow-input" in data["not_judged"]


def test_an_evaluation_has_counts_and_the_share_of_communication(folder: Path) -> None:
    found = evidence_of(read(folder / "matrix.json"), "mirrored[replicas=2]")
    assert found.gain("alone").value == pytest.approx(1.5, rel=0.02)
    with pytest.raises(UsageError, match="is not JSON"):
        read(folder / "text.json")


def test_a_variant_that_the_evaluation_calls_wrong_gets_no_advice(folder: Path) -> None:
    data = json.loads((folder / "evaluation.json").read_text())
    data["verdicts"] = {"mirrored[replicas=2]": {"verdict": "fail"}}
    (folder / "wrong.json").write_text(json.dumps(data))
    matrix = read(folder / "wrong.json")
    assert matrix.variants == ["one_device"]
    assert "not shown to be correct (verdict of the evaluation: fail)" in matrix.skipped["mirrored[replicas=2]"]
    data["verdicts"]["one_device"] = {"verdict": "inconclusive"}
    (folder / "wrong.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="has no launch to give advice on"):
        read(folder / "wrong.json")


class Given:
    """Collector that has measured already."""

    found: Any = None

    def __init__(self, *_given: object) -> None:
        pass

    def first(self) -> Any:
        return self.found

    def answer(self, *_given: object) -> bool:
        return False


@pytest.mark.parametrize(
    ("gains", "measured", "status", "words"),
    [
        ({}, None, OK, "what to change: nothing: no rule applies"),
        ({"cached": 4.0, "parallel": 3.5}, Gain(3.4, 3.3, 3.6), OK, "the first piece of advice held"),
        ({"cached": 4.0, "parallel": 3.5}, Gain(1.2, 1.1, 1.3), WRONG, "the first piece of advice did not hold"),
        ({"cached": 4.0, "parallel": 3.5}, Gain(2.0, 0.5, 9.0), INCOMPLETE, "the first piece of advice not decided"),
        # No knob makes an input cheaper.
        ({"cached": 4.0}, None, OK, "--after=MODULE:FUNCTION"),
    ],
)
def test_the_status_says_whether_the_first_advice_held(
    gains: dict[str, float],
    measured: Gain | None,
    status: int,
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pytest_ddl import harness
    from pytest_ddl.bench.advice import collecting

    monkeypatch.setattr(Given, "found", evidence(gains=gains))
    monkeypatch.setattr(collecting, "Collector", Given)
    monkeypatch.setattr(harness.Harness, "warm_up", lambda _self: None)
    monkeypatch.setattr(harness.Harness, "unavailable", lambda *_given: None)

    def confirm(*_given: object, knob: str, expected: Gain | None, **_more: object) -> Confirmation:
        assert measured is not None
        return Confirmation(knob, measured, (1.0, 1.0), expected)

    monkeypatch.setattr(command, "confirm", confirm)
    assert command.main(options("own_train:train", "--strategy", "multi_worker_mirrored")) == status
    assert words in " ".join(capsys.readouterr().out.split())


def test_an_interruption_ends_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main(options("own_train:train")) == INTERRUPTED
    assert "interrupted: no advice was given" in capsys.readouterr().err


def test_a_measurement_that_fails_is_no_advice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_given: object) -> None:
        raise command.BenchError("worker:0 failed while it was measured: ValueError: no data")

    monkeypatch.setattr(command, "_measured", fails)
    assert command.main(options("own_train:train")) == FAILED
    assert "nothing was measured: worker:0 failed" in capsys.readouterr().err


def test_a_program_is_imported_where_it_runs(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "helper.py").write_text("NUMBER = 3\n")
    (folder / "package" / "fine.py").write_text(
        "from package.helper import NUMBER\n\ndef train(run):\n    run.append(NUMBER)\n"
    )
    for text in ("package.fine:train", "package/fine.py:train"):
        seen: list[int] = []
        Target.find(text).on_ranks()(seen)
        assert seen == [3]


def test_a_confirmation_needs_several_launches() -> None:
    with pytest.raises(ValueError, match="launches=1: an interval needs at least 2"):
        confirming.confirm(None, print, "mirrored", None, launches=1)  # type: ignore[arg-type]
