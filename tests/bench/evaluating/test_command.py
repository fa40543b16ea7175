"""The command: wrong options in one line before anything runs, and an exit status for each end."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_ddl.bench.evaluating import store
from pytest_ddl.bench.evaluating.records import CellVerdict, Evaluation
from pytest_ddl.bench.evaluating.running import EvaluationError, EvaluationRunner
from pytest_ddl.bench.outcome import INTERRUPTED, USAGE
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.commands import evaluate as command
from pytest_ddl.strategies.base import Machine
from tests.bench.evaluating.synthetic import TWO, evaluation

PROGRAM = "def train(run):\n    pass\n\nanswer = 42\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user with a training function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_training", "broken_training"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "own_training.py").write_text(PROGRAM)
    (tmp_path / "broken_training.py").write_text("import absent_package\ndef train(run):\n    pass\n")
    return tmp_path


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([*given, "--device", "cpu"])


class Ending:
    """Stands in for the run of all parts, and ends it in a given way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started_with: list[Evaluation] = []
        self.result: Evaluation | BaseException = evaluation()
        monkeypatch.setattr(EvaluationRunner, "run", self._run)
        monkeypatch.setattr(command.Harness, "warm_up", lambda _self: None)

    def _run(self, given: Evaluation) -> Evaluation:
        self.started_with.append(given)
        if isinstance(self.result, BaseException):
            raise self.result
        return replace(self.result, identity=given.identity)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    return Ending(monkeypatch)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out, which take most of the time."""
    monkeypatch.setattr(store.pictures, "draw", lambda _summary, _folder: [])


def test_hosts_that_cannot_be_used_are_named_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(_harness: Any) -> NoReturn:
        raise LaunchError("the host b does not answer")

    monkeypatch.setattr(command, "available_cores", unreachable)
    assert command.main(options("own_training:train")) == command.WRONG
    told = capsys.readouterr().err
    assert told == "pytest-ddl evaluate: error: nothing was evaluated: the host b does not answer\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["own_training:trian"], "has no 'trian' (did you mean 'train'?)"),
        (["own_trainin:train"], "there is no module 'own_trainin' here or installed (did you mean 'own_training'?)"),
        (["absent.py:train"], "there is no file 'absent.py'"),
        (["own_training"], "'own_training' must name a function as MODULE:FUNCTION"),
        (["own_training:answer"], "answer is int, not a function train(run)"),
        (["broken_training:train"], "broken_training.py cannot be imported: ModuleNotFoundError: No module named"),
        (
            ["own_training:train", "--strategy=miror"],
            "--strategy=miror: 'miror' is not a strategy (did you mean 'mirrored'?)",
        ),
        (["own_training:train", "--replicas=1,x"], "--replicas=1,x must be whole numbers, at least 1"),
        (["own_training:train", "--replicas=0"], "--replicas=0 must be whole numbers, at least 1"),
        (["own_training:train", "--batch-sizes=8;16"], "--batch-sizes=8;16 must be whole numbers"),
        (["own_training:train", "--target-loss=nan"], "--target-loss=nan must be a finite number"),
        (["own_training:train", "--output=/proc/x"], "--output=/proc/x: nothing can be written in /proc"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    given: list[str], words: str, folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(options(*given)) == USAGE
    told = capsys.readouterr().err
    assert told.startswith("pytest-ddl evaluate: error: ")
    assert words in told
    assert told.count("\n") == 1
    assert not ending.started_with
    assert not (folder / "evaluation").exists()


def test_a_device_that_is_not_there_is_a_wrong_option(
    folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.Harness, "machine", Machine(gpus=0, gpu_reason="no driver"))
    given = options("own_training:train")
    given.device = "gpu"
    assert command.main(given) == USAGE
    assert "error: --device=gpu: one_device needs a GPU (device=gpu): no driver" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_shared_gpus_are_noted(folder: Path, ending: Ending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.Harness, "machine", Machine(gpus=2))
    given = options("own_training:train", "--strategy=mirrored,parameter_server", "--replicas=2,4")
    given.device = "gpu"
    assert command.main(given) == command.OK
    (note,) = [text for text in ending.started_with[0].notes if "GPUs" in text]
    assert note.startswith("mirrored[replicas=4], parameter_server[workers=2,ps=1,processes=shared], parameter_server")


def test_an_evaluation_is_written_and_ends_with_0(
    folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(options("own_training:train", "--replicas=1,2")) == command.OK
    captured = capsys.readouterr()
    assert captured.out.startswith("Shortest time to a training loss of 0.3")
    assert "written to evaluation: open evaluation/index.html" in captured.err
    assert (folder / "evaluation" / "index.html").exists()
    (started,) = ending.started_with
    assert started.identity.target == "own_training:train"
    assert started.identity.options["replicas"] == [1, 2]
    assert set(started.identity.versions) == {"python", "pytest-ddl", "tensorflow", "numpy", "keras"}


def test_a_wrong_cell_ends_with_1(folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]) -> None:
    one = evaluation()
    ending.result = replace(one, verdicts={**one.verdicts, TWO.variant: CellVerdict("fail", "gradient-scaled: twice")})
    assert command.main(options("own_training:train")) == command.WRONG
    assert f"error: the training is wrong under {TWO.variant}" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_nothing_measured_ends_with_1(folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]) -> None:
    ending.result = replace(evaluation(), launches=())
    assert command.main(options("own_training:train")) == command.WRONG
    assert "nothing could be measured" in capsys.readouterr().err


def test_a_program_that_does_not_train_ends_with_1(
    folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    ending.result = EvaluationError("the program does not train on one device: NameError")
    assert command.main(options("own_training:train")) == command.WRONG
    assert "does not train on one device" in capsys.readouterr().err


def saved(folder: Path, ending: Ending, **changes: Any) -> Evaluation:
    """Keep an evaluation of the same program and options, as an interrupted one does."""
    ending.result = evaluation()
    command.main(options("own_training:train"))
    kept = replace(evaluation(), identity=ending.started_with.pop().identity, **changes)
    store.save(kept, folder / "evaluation")
    return kept


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_evaluation_continues_and_says_so(
    folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = saved(folder, ending, complete=False)
    ending.result = KeyboardInterrupt()
    capsys.readouterr()
    assert command.main(options("own_training:train")) == INTERRUPTED
    told = capsys.readouterr().err
    assert "the evaluation in evaluation, started 2026-01-01 00:00 UTC, goes on" in told
    assert "interrupted: the same command continues in evaluation" in told
    assert ending.started_with == [kept]


@pytest.mark.usefixtures("undrawn")
def test_a_complete_evaluation_is_only_shown_again(
    folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(folder, ending)
    assert command.main(options("own_training:train")) == command.OK
    assert ending.started_with == []
    assert "is complete" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_another_evaluation_is_refused_or_replaced(
    folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(folder, ending)
    capsys.readouterr()
    assert command.main(options("own_training:train", "--seeds=7")) == USAGE
    told = capsys.readouterr().err
    assert "--output=evaluation holds another evaluation (seeds 5 → 7); give --restart" in told
    assert told.count("\n") == 1
    assert command.main(options("own_training:train", "--seeds=7", "--restart")) == command.OK
    assert ending.started_with[0].curves == ()


@pytest.mark.usefixtures("undrawn")
def test_a_changed_program_is_another_evaluation(
    folder: Path, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(folder, ending)
    (folder / "own_training.py").write_text(PROGRAM + "# changed\n")
    assert command.main(options("own_training:train")) == USAGE
    assert "the program has changed" in capsys.readouterr().err
