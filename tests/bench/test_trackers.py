"""Numbers of a gate and of an evaluation arrive in experiment trackers, and one that fails is no pass."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pytest_ddl.bench import trackers
from pytest_ddl.bench.evaluating.exporting import sheet_of
from pytest_ddl.bench.evaluating.table import EvaluationSummary
from pytest_ddl.bench.gate import GateResult, Verdict
from pytest_ddl.bench.gate.cell import measure_cell
from pytest_ddl.bench.gate.result import CellResult
from pytest_ddl.bench.gate.worktrees import Version
from pytest_ddl.bench.outcome import FAILED, OK, USAGE, WRONG
from pytest_ddl.bench.trackers import Export, Sheet, Tracker
from pytest_ddl.cli import main
from pytest_ddl.commands import gate as command
from tests.bench.evaluating.synthetic import ABSENT, SEEDS, TWO, evaluation
from tests.bench.gate.made import cell, paired
from tests.polling import wait_until

VERSION = Version("main", "a" * 40, "t")
SLOWER = [5.0, 5.2, 4.9, 5.1]
"""Percent by which HEAD is slower in each launch."""


def gated(*percents: float) -> GateResult:
    measured = measure_cell(cell(), launch=lambda number: paired(percents[number % len(percents)]))
    return GateResult(VERSION, VERSION, (measured,), 0.025)


@pytest.fixture
def sheet(tmp_path: Path) -> Sheet:
    """Numbers with everything that a tracker may dislike."""
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "index.html").write_text("<p>report</p>")
    return Sheet(
        "gate-1",
        {"BASE": "main", "m:f mirrored[replicas=2] verdict": "pass", "long": "x" * 9000},
        {"m:f mirrored[replicas=2]/ratio": 1.05, "lower": -math.inf, "upper": math.nan},
        {"mirrored[replicas=2]/seed 0/loss": [(1, 0.5), (2, 0.25), (3, math.nan)], "other": [(2, 7.0)]},
        tmp_path / "report",
    )


def test_a_gate_gives_its_ratio_with_bounds_and_its_verdict() -> None:
    sheet = gated(*SLOWER).as_sheet()
    name = next(name for name in sheet.numbers if name.endswith("/ratio"))
    lower, ratio, upper = (sheet.finite[name.replace("ratio", part)] for part in ("lower", "ratio", "upper"))
    assert lower < ratio < upper
    assert ratio == pytest.approx(1.05, abs=0.005)
    assert sheet.facts["verdict"] == "regression"
    assert sheet.numbers["exit status"] == WRONG


def test_a_gate_without_a_decision_gives_its_verdict() -> None:
    result = GateResult(VERSION, VERSION, (CellResult("m:f", "one_device", Verdict.ERROR, "no target"),), 0.025)
    assert result.as_sheet().numbers == {"exit status": FAILED, "m:f one_device/launches": 0}
    assert result.as_sheet().facts["m:f one_device reason"] == "no target"


def test_an_evaluation_gives_speed_results_and_losses_of_each_seed(tmp_path: Path) -> None:
    summary = EvaluationSummary(evaluation())
    sheet = sheet_of(summary, tmp_path)
    of_two = {name.removeprefix(f"{TWO.variant}/") for name in sheet.numbers if name.startswith(TWO.variant)}
    assert {"throughput", "weak_scaling_efficiency", f"final {summary.metric}", "steps to the target"} <= of_two
    assert not any(name.startswith(ABSENT.variant) for name in (*sheet.numbers, *sheet.facts)), "it did not run"
    assert sheet.facts[f"{TWO.variant} verdict"] == "pass"
    assert sum(name.startswith(f"{TWO.variant}/seed ") for name in sheet.curves) == len(SEEDS)
    assert all(curve[0][0] == 1 for curve in sheet.curves.values())


def test_two_runs_have_two_names() -> None:
    assert trackers.run_named("gate") != trackers.run_named("gate")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensorbord:runs", "'tensorbord:runs' names no tracker; valid: tensorboard[:FOLDER], mlflow[:URI], wandb[:PR"),
        ("mlflow:http://host", "needs a package that is not installed here: pip install no_such_package"),
        ("tensorboard:/proc/runs", "nothing can be written in /proc"),
    ],
)
def test_a_wrong_tracker_is_named_before_anything_runs(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = {"mlflow": "no_such_package", "tensorboard": "pytest", "wandb": "pytest"}
    replaced = {name: one._replace(package=packages[name]) for name, one in trackers.TRACKERS.items()}
    monkeypatch.setattr(trackers, "TRACKERS", replaced)
    monkeypatch.setattr(command, "run_gate", lambda *_args: pytest.fail("the gate ran"))
    with pytest.raises(SystemExit) as ended:
        main(["gate", "a", "b", "--target", "m:f", f"--export={text}"])
    assert ended.value.code == USAGE
    told = capsys.readouterr().err
    assert "argument --export: " in told
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("percents", "status"), [((0.0,), FAILED), (SLOWER, WRONG)])
def test_a_tracker_that_fails_is_no_pass_and_does_not_stop_the_others(
    percents: tuple[float, ...], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_sheet: Sheet, place: str) -> None:
        raise ConnectionError(f"no answer from\n{place}")

    arrived: list[tuple[Sheet, str]] = []
    kept = Tracker("pytest", "PLACE", lambda sheet, place: arrived.append((sheet, place)))
    monkeypatch.setattr(trackers, "TRACKERS", {"mlflow": Tracker("pytest", "URI", refuse), "kept": kept})
    monkeypatch.setattr(command, "run_gate", lambda *_args: gated(*percents))
    given = ["gate", "a", "b", "--target", "m:f", "--export=mlflow:http://host:5000", "--export=kept"]
    given.append("--export=kept:twice")
    assert main(given) == status
    said = "error: --export=mlflow:http://host:5000 could not be written: ConnectionError: no answer from http://host"
    assert said in capsys.readouterr().err
    verdict = OK if status == FAILED else WRONG
    assert [(sheet.numbers["exit status"], place) for sheet, place in arrived] == [(verdict, ""), (verdict, "twice")]
    assert len({sheet.run for sheet, _place in arrived}) == 1, "one result is one run"


def test_tensorboard_shows_the_numbers(sheet: Sheet, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Export("tensorboard", str(tmp_path / "runs")).send(sheet)
    events = EventAccumulator(str(tmp_path / "runs" / "gate-1")).Reload()
    shown = {
        tag: [(event.step, float(event.tensor_proto.float_val[0])) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
    assert shown == {
        "m:f mirrored[replicas=2]/ratio": [(0, pytest.approx(1.05))],
        "mirrored[replicas=2]/seed 0/loss": [(1, 0.5), (2, 0.25)],
        "other": [(2, 7.0)],
    }


def test_mlflow_keeps_numbers_facts_and_the_report(
    sheet: Sheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    Export("mlflow", f"file://{tmp_path / 'tracked'}").send(sheet)
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.info.run_name == "gate-1"
    assert run.info.status == "FINISHED"
    assert run.data.params["BASE"] == "main"
    assert run.data.metrics == {
        "m_f mirrored_replicas_2_/ratio": 1.05,
        "mirrored_replicas_2_/seed 0/loss": 0.25,
        "other": 7.0,
    }
    assert [file.path for file in mlflow.artifacts.list_artifacts(run_id=run.info.run_id)] == ["index.html"]


def test_wandb_writes_a_run(sheet: Sheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    Export("wandb", "speed").send(sheet)
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    words = (b"gate-1", b"speed", b"m:f mirrored[replicas=2]/ratio", b"index.html")
    # A process of the package writes the file.
    wait_until(lambda: all(word in written.read_bytes() for word in words), seconds=30)
