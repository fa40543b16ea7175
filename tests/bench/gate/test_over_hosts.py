"""The gate over emulated hosts, with real launches: ranks move over the hosts, and changes of the network are seen."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddl.bench.gate import GatePlan, Verdict
from pytest_ddl.bench.gate.cell import measure_cell
from pytest_ddl.bench.gate.lockstep import LAUNCHES, Paired, VersionPair
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.verdict import Rule
from pytest_ddl.bench.gate.worktrees import Repository, both_sides
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.cluster.strays import tagged
from tests.bench.gate.made import CALM, cell
from tests.bench.gate.repositories import git
from tests.hosts.conftest import emulated_hosts

pytestmark = pytest.mark.slow

PROGRAM = """
import json
import os

import tensorflow as tf


def train(run):
    rank = run.strategy.cluster_resolver.task_id
    with open(os.environ["TOLD"], "a") as file:
        side = __file__.split("/")[-2]
        file.write(json.dumps([side, rank, os.readlink("/proc/self/ns/net")]) + "\\n")
    with run.strategy.scope():
        weight = tf.Variable([1.0, 2.0])
    run.watch(variables=[weight])

    @tf.function
    def step(iterator):
        def on_replica(batch):
            gradient = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_mean(batch) * weight)
            weight.assign_sub(1e-3 * gradient)
            return gradient[0]

        return run.strategy.reduce("SUM", run.strategy.run(on_replica, args=(next(iterator),)), axis=None)

    dataset = tf.data.Dataset.range(64).map(lambda x: tf.cast(x, tf.float32)).batch(run.global_batch_size)
    for _ in run.steps(step, dataset):
        pass
"""
TARGET = "training:train"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VersionPair]:
    """Two versions of a program on two emulated hosts, with 400 Mbit/s and a canary."""
    with emulated_hosts(tmp_path):
        pass
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("DDL_TEST_PROJECT", str(folder))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("PYTEST_DDL_LAUNCHER", "netns[hosts=2,mbit=400]")
    git(folder, "init", "-q", "-b", "main")
    for number in (1, 2):
        (folder / "training.py").write_text(f"{PROGRAM}\n# {number}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"{number}")
    plan = GatePlan("main~1", "main", (TARGET,), repository=folder)
    repository = Repository(folder)
    versions = [repository.version(name) for name in ("main~1", "main")]
    with both_sides(plan, repository, *versions) as (base, head, _notes):
        given = (base, head, VersionTarget.parse(TARGET), "multi_worker_mirrored", 2, BenchSpec(batch_per_replica=4))
        with VersionPair(*given, groups=4, canary=True) as made:
            yield made


def limit(folder: Path, mbit: int) -> None:
    """Change the bandwidth of all emulated hosts that a gate of a project has started."""
    networks = {}
    for process in tagged(str(folder), "DDL_TEST_PROJECT"):
        networks.setdefault(os.readlink(f"/proc/{process}/ns/net"), process)
    networks.pop(os.readlink("/proc/self/ns/net"), None)
    changed = 0
    for process in networks.values():
        user = ["-U", "--preserve-credentials"] if os.geteuid() else []
        limits = f"qdisc change dev eth0 root handle 1: tbf rate {mbit}mbit burst 65536 latency 200ms"
        command = ["nsenter", "-t", str(process), *user, "-n", "tc", *limits.split()]
        changed += subprocess.run(command, capture_output=True).returncode == 0
    # The switches have no such device.
    assert changed == 4


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly
def test_a_network_that_changes_ends_in_no_verdict(pair: VersionPair, tmp_path: Path) -> None:
    def launch(number: int) -> Paired:
        if number == LAUNCHES - 1:
            limit(tmp_path / "project", 20)
        # What else this machine does is another reason to give no verdict.
        return replace(pair.launch(number), load=CALM)

    result = measure_cell(cell(canary=True, rule=Rule.up_to(LAUNCHES)), launch=launch)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "the network changed while the gate measured" in result.reason
    assert {launched.base.hosts for launched in result.launches} == {
        launched.head.hosts for launched in result.launches
    }
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    for side in ("base", "head"):
        of = {rank: [network for name, one, network in told if (name, one) == (side, rank)] for rank in range(2)}
        # Both hosts have both ranks in turn.
        assert of[0][0] != of[1][0]
        assert of[0] == [of[0][0], of[1][0], of[0][0]]
        assert of[1] == [of[1][0], of[0][0], of[1][0]]
