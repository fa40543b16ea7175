"""The command: wrong options in one line, nothing measured of wrong training, nothing left behind."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asv_bench.studies import report
from asv_bench.studies.mnist import command, measuring
from asv_bench.studies.running import INSTALL
from pytest_ddl.bench.launching import machine
from pytest_ddl.bench.outcome import INTERRUPTED, OK, USAGE, WRONG
from tests.asv_bench.mnist.synthetic import experiment, training


def options(tmp_path: Path, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["--output", str(tmp_path / "out"), "--device", "cpu", *given])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--epochs", "0"], "--epochs=0 must be at least 1"),
        (["--batch", "-1"], "--batch=-1 must be at least 1"),
        (["--repeats", "0"], "--repeats=0 must be at least 1"),
        (["--timeout", "0"], "--timeout=0.0 must be a positive number of seconds"),
        (["--quick", "--epochs", "4"], "--quick means 3 epochs; give it or --epochs=4, not both"),
        (["--data", "/absent.npz"], "/absent.npz cannot be read as .npz: [Errno 2] No such file"),
        (["--strategy", "miror"], "--strategy=miror: "),
        (["--strategy", "parameter_server"], "only mirrored and multi_worker_mirrored can be compared"),
        (["--strategy", "mirrored[replicas=1]"], "has 1 replica; scaling needs at least 2"),
        (["--strategy", "mirrored[replicas=999]"], "needs a core for every replica, but this process may use"),
        (["--batch-rule", "global", "--batch", "65"], "--batch=65 cannot be split evenly over 2 replicas"),
        (["--batch", "4000"], "1438 training images are less than one batch of 8000"),
        (["--device", "gpu"], "--device=gpu"),
        (["--output", "/proc/x"], "--output=/proc/x: nothing can be written in /proc: "),
        (["--output", "/dev/null/x"], "--output=/dev/null/x: nothing can be written in /dev/null: Not a directory"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    given: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four cores for the options that need two, wherever this runs.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    assert command.main(options(tmp_path, *given)) == USAGE
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert words in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("given", "missing"), [([], "sklearn"), (["--data", "mine.npz"], "scipy")])
def test_a_missing_package_is_named_before_anything_runs(
    given: list[str],
    missing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert command.main(options(tmp_path, *given)) == USAGE
    told = capsys.readouterr().err
    assert f"error: {missing} cannot be imported" in told
    assert INSTALL in told


class Verdict:
    """Result of a check."""

    def __init__(self, passed: bool) -> None:
        self.passed = passed

    def __str__(self) -> str:
        return "multi_worker_mirrored matches one device" if self.passed else "loss-mean: gradients are halved"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[measuring.Plan]:
    """Plans that were measured, in place of trainings."""
    pytest.importorskip("matplotlib")
    plans: list[measuring.Plan] = []

    def measure(_harness: Any, plan: measuring.Plan, _told: Any) -> Any:
        plans.append(plan)
        return list(experiment().trainings)

    monkeypatch.setattr(measuring, "check", lambda _plan: Verdict(True))
    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(command, "cores_per_replica", lambda _harness, _spec: 1)
    return plans


def test_a_failing_check_stops_everything_with_its_report(
    measured: list[measuring.Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "check", lambda _plan: Verdict(False))
    assert command.main(options(tmp_path)) == WRONG
    assert "loss-mean: gradients are halved" in capsys.readouterr().err
    assert measured == []
    assert not (tmp_path / "out").exists()


def test_everything_is_written_and_printed(
    measured: list[measuring.Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(options(tmp_path)) == OK
    (plan,) = measured
    assert (plan.epochs, plan.batch, plan.batch_rule, plan.train_images) == (30, 64, "replica", 1408)
    assert plan.many == "multi_worker_mirrored[workers=2,replicas=1]"
    assert not plan.file.exists()
    assert "69.66%" in capsys.readouterr().out
    assert (tmp_path / "out" / "index.html").exists()


def test_options_reach_the_plan(measured: list[measuring.Plan], tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    images, labels = np.zeros((100, 28, 28), np.uint8), np.zeros(100, np.uint8)
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    given = ["--quick", "--batch", "8", "--batch-rule", "global", "--repeats", "3", "--data", str(file), "--no-pin"]
    assert command.main(options(tmp_path, "--strategy", "mirrored", *given)) == OK
    (plan,) = measured
    assert (plan.epochs, plan.global_batch(2), plan.repeats, plan.train_images) == (3, 8, 3, 96)
    assert (plan.many, plan.cores_per_replica) == ("mirrored[replicas=2]", 0)
    text = (tmp_path / "out" / "table.md").read_text()
    assert "Replicas were not pinned and share all cores" in text
    assert "3 epochs instead of 30" in text


@pytest.mark.parametrize(("load", "busy"), [(0.9, False), (1.1, True)])
def test_a_busy_machine_is_reported(
    measured: list[measuring.Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, busy: bool
) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: {0, 1})
    command.main(options(tmp_path))
    assert ("these times are not reliable" in (tmp_path / "out" / "table.md").read_text()) is busy


def test_what_was_measured_is_printed_where_it_cannot_be_written(
    measured: list[measuring.Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "save", full)
    assert command.main(options(tmp_path)) == WRONG
    told = capsys.readouterr()
    assert "69.66%" in told.out
    assert "could not be written completely: [Errno 28] No space left on device" in told.err
    # All that the rest can be made of.
    assert (tmp_path / "out" / "results.json").exists()


def test_accuracies_that_do_not_agree_are_a_problem() -> None:
    pytest.importorskip("scipy")
    apart = experiment(training(1, [1.0] * 9, [0.98] * 9), training(2, [1.0] * 9, [0.7] * 9))
    assert command.report(apart).problem.startswith("the accuracies on 1 and on 2 replicas DO NOT AGREE")
    assert command.report(experiment()).problem == ""


def test_a_training_that_failed_is_reported(
    measured: list[measuring.Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_given: Any) -> Any:
        raise measuring.ExperimentError("worker:1 died")

    monkeypatch.setattr(measuring, "measure", measure)
    assert command.main(options(tmp_path)) == WRONG
    assert "nothing was measured: worker:1 died" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_leaves_nothing(
    measured: list[measuring.Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    files = []

    def measure(_harness: Any, plan: measuring.Plan, _told: Any) -> Any:
        files.append(plan.file)
        signal.raise_signal(number)

    # Under nohup, this process ignores SIGHUP.
    original = signal.signal(number, signal.default_int_handler)
    monkeypatch.setattr(measuring, "measure", measure)
    try:
        assert command.main(options(tmp_path)) == INTERRUPTED
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, original)
    assert not files[0].parent.exists()
    assert not (tmp_path / "out").exists()


def test_gpus_that_are_shared_are_reported() -> None:
    assert command._gpu_notes(2, 2) == []
    (note,) = command._gpu_notes(2, 1)
    assert "2 replicas shared 1 GPU" in note
