"""The gate with real launches of both versions. No time is asserted: the machine may be busy."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from pytest_ddl.bench.gate import GatePlan, Verdict, lockstep, run_gate
from pytest_ddl.bench.gate.lockstep import VersionPair
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.worktrees import Repository, both_sides
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.cli import main
from pytest_ddl.cluster.strays import tagged
from tests.bench.gate.repositories import git

pytestmark = pytest.mark.slow

PROGRAM = """
import os
import tempfile

import tensorflow as tf
from helper import FACTOR


def train(run):
    with run.strategy.scope():
        weight = tf.Variable([1.0, 2.0])
    run.watch(variables=[weight])

    @tf.function
    def step(iterator):
        def on_replica(batch):
            gradient = tf.reduce_mean(batch) * weight * FACTOR
            for _ in range({reductions}):
                gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weight.assign_sub(1e-3 * gradient)
            return gradient[0]

        return run.strategy.reduce("SUM", run.strategy.run(on_replica, args=(next(iterator),)), axis=None)

    dataset = tf.data.Dataset.range(64).map(lambda x: tf.cast(x, tf.float32)).batch(run.global_batch_size)
    for _ in run.steps(step, dataset):
        pass


def broken(run):
    raise RuntimeError("a mistake of this version")


def told(run):
    os.mkdir(tempfile.gettempdir() + "/mine")
    with open(os.environ["TOLD"], "a") as file:
        print(__file__.split("/")[-3], os.getpid(), os.getppid(), hash("name"), file=file)
    train(run)


def fails_later(run):
    with open(os.environ["TOLD"] + __file__.split("/")[-3], "a") as file:
        again = file.tell()
        print("launched", file=file)
    if again and FACTOR > 1.2:
        raise RuntimeError("a mistake that shows later")
    train(run)
"""


SOMETIMES = """
    @tf.function
    def more():
        return run.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))

    for number, _ in enumerate(run.steps(step, dataset)):
        if number > 12 and number % 7 == 0:
            more()
"""


def sometimes_more() -> str:
    """A program that reduces once more in some steps."""
    text = PROGRAM.replace("{reductions}", "2")
    looped = text.replace("    for _ in run.steps(step, dataset):\n        pass", SOMETIMES, 1)
    assert looped != text
    return looped


def gate_on_counters(project: Path, *options: str) -> int:
    """Return the exit status of a gate between the last commit and the files of the worktree."""
    given = ["--repository", str(project), "--target", "bench.training:train", "--counters-only", *options]
    return main(["gate", "main", "WORKTREE", *given])


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose second commit reduces twice; a package in ``src`` and a training function in ``bench``."""
    folder = tmp_path / "project"
    monkeypatch.setenv("DDL_TEST_PROJECT", str(folder))  # inherited by whatever a gate starts
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (folder / "src").mkdir(parents=True)
    (folder / "bench").mkdir()
    git(folder, "init", "-q", "-b", "main")
    for reductions in (1, 2):
        (folder / "src" / "helper.py").write_text(f"FACTOR = 1.{reductions}\n")
        (folder / "bench" / "training.py").write_text(PROGRAM.replace("{reductions}", str(reductions)))
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"{reductions}")
    return folder


def left_behind(project: Path) -> list[str]:
    """Processes and worktrees of a gate that should be over."""
    return started_for(project) + git(project, "worktree", "list").splitlines()[1:]


def started_for(project: Path) -> list[str]:
    """The processes that a gate of the project has started."""
    return [str(process) for process in tagged(str(project), "DDL_TEST_PROJECT")]


def test_one_more_reduction_is_a_regression_of_counters(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        [
            *("gate", "main~1", "main", "--repository", str(training), "--target", "bench.training:train"),
            *("--strategy", "mirrored", "--batch-per-replica", "4", "--counters-only"),
            *("--json", str(tmp_path / "gate.json")),
        ]
    )
    out = capsys.readouterr().out
    assert status == 1, out
    assert "1 more all_reduce per step (1 -> 2)" in out
    data = json.loads((tmp_path / "gate.json").read_text())
    provenance = data["cells"][0]["launches"][0]["provenance"]
    assert provenance["BASE"]["commit"] == git(training, "rev-parse", "main~1")
    assert provenance["HEAD"]["commit"] == git(training, "rev-parse", "main")
    assert provenance["BASE"]["program"].endswith("/base/bench/training.py")
    assert provenance["HEAD"]["program"].endswith("/head/bench/training.py")
    assert left_behind(training) == []


def test_a_reduction_in_some_steps_after_the_warm_up_is_a_regression_of_counters(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (training / "bench" / "training.py").write_text(sometimes_more())
    options = ["--strategy", "mirrored", "--batch-per-replica", "4", "--json", str(tmp_path / "gate.json")]
    assert gate_on_counters(training, *options) == 1
    assert "more in" in capsys.readouterr().out
    (cell,) = json.loads((tmp_path / "gate.json").read_text())["cells"]
    worse = {change["counter"] for change in cell["changes"] if change["is_regression"]}
    assert worse >= {"collectives.all_reduce", "reduced_bytes", "unpacked"}
    assert any("loss.numpy()" in text for text in cell["not_counted"])
    assert len(cell["counters"]["head"]["of_steps"]["eager"]) > 20


@pytest.mark.nightly  # test_cell.py passes versions with equal counters for each commit.
def test_the_same_work_passes_on_counters(training: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = training / "bench" / "training.py"
    program.write_text(sometimes_more())
    git(training, "commit", "-qam", "sometimes")
    program.write_text(f"{sometimes_more()}\n# The same work.\n")
    assert gate_on_counters(training, "--strategy", "mirrored", "--batch-per-replica", "4") == 0
    assert "time was not measured (--counters-only). Nothing counts what runs outside" in capsys.readouterr().out


def test_both_versions_take_turns_in_processes_of_their_own_and_interpreters_are_renewed(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockstep, "LAUNCHES", 2)
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    repository = Repository(training)
    base, head = repository.version("main~1"), repository.version("WORKTREE")
    plan = GatePlan("main~1", "WORKTREE", ("bench.training:told",), repository=training)
    with both_sides(plan, repository, base, head) as (one, other, _notes):
        bench = BenchSpec(batch_per_replica=4, timeout=400)
        with VersionPair(
            one, other, VersionTarget.parse("bench.training:told"), "one_device", 1, bench, groups=4
        ) as pair:
            reports = [pair.launch(number) for number in range(3)]
            assert started_for(training) != []
    rows = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert sorted(row[0] for row in rows) == ["base"] * 3 + ["head"] * 3
    assert len({process for _side, process, *_ in rows}) == 6
    for side in ("base", "head"):
        interpreters = [parent for name, _process, parent, _hash in rows if name == side]
        assert interpreters[0] == interpreters[1] != interpreters[2]
    hashes = [row[3] for row in rows]
    assert len(set(hashes[:4])) == 1  # of both sides
    assert len(set(hashes[4:])) == 1
    assert hashes[0] != hashes[4]
    programs = [{rank.program for rank in launch.ranks} for one in reports for launch in (one.base, one.head)]
    assert [Path(*program).parents[1].name for program in programs] == ["base", "head"] * 3
    assert len({one.ratios for one in reports}) == 3  # of the launch that was asked for, each
    for one in reports:
        assert len(one.ratios) == 4
        assert math.isfinite(one.log_ratio)
        assert min(one.step_seconds) > 0
        assert one.load.foreign_cores is None or one.load.foreign_cores >= 0
        assert one.base.counters.retraces == 0
        assert one.provenance["BASE"]["tensorflow"] == one.provenance["HEAD"]["tensorflow"]
    assert left_behind(training) == []


def test_a_version_that_fails_in_a_later_launch_could_not_be_measured(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    (training / "src" / "helper.py").write_text("FACTOR = 1.3\n")
    bench = BenchSpec(batch_per_replica=4, timeout=400)
    targets = ("bench.training:fails_later",)
    # The second launch fails, so that the time of the first one must not use the budget up.
    result = run_gate(GatePlan("main", "WORKTREE", targets, bench=bench, repository=training, budget=3600))
    assert [cell.verdict for cell in result.cells] == [Verdict.ERROR]
    assert "a mistake that shows later" in result.cells[0].reason
    assert result.cells[0].reason.startswith("HEAD (")
    assert len(result.cells[0].launches) == 1
    assert left_behind(training) == []


@pytest.mark.nightly  # The test above fails in a later launch; test_gating.py and test_cell.py have the verdict.
def test_a_version_that_fails_could_not_be_measured(training: Path) -> None:
    plan = GatePlan("main~1", "main", ("bench/training.py:broken",), counters_only=True, repository=training)
    result = run_gate(plan)
    assert [cell.verdict for cell in result.cells] == [Verdict.ERROR]
    assert "a mistake of this version" in result.cells[0].reason
    assert result.exit_status == 4
    assert left_behind(training) == []


def test_an_interpreter_without_tensorflow_is_named(training: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    fake.chmod(0o755)
    plan = GatePlan(
        "main", "main", ("bench.training:train",), counters_only=True, repository=training, head_python=str(fake)
    )
    result = run_gate(plan)
    assert result.exit_status == 4
    assert "HEAD" in result.cells[0].reason
    assert "No module named" in result.cells[0].reason
