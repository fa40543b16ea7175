"""A launcher of a plugin starts ranks as plain subprocesses and talks with them through their stdin and stdout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CONFTEST = "from pipe_launcher import pytest_ddl_register_launchers\n"
# A rank imports TensorFlow anew, so a test that ends a cluster is the last one that uses it.
TESTS = """
import os
import signal
import subprocess

import pytest

@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
def test_passes(ddl_strategy):
    import tensorflow as tf

    # None of this may reach the channel.
    print("printed by the test")
    os.write(1, b"written by the test")
    subprocess.run(["echo", "written by a child"], check=True)
    assert ddl_strategy.num_replicas_in_sync == 2
    assert float(ddl_strategy.reduce("SUM", ddl_strategy.run(lambda: tf.constant(1.0)), axis=None)) == 2

@pytest.mark.ddl(strategies=["mirrored"])
def test_fails(ddl_strategy):
    print("printed by the test")
    assert ddl_strategy is None, "a message of the test"

@pytest.mark.ddl(strategies=["multi_worker_mirrored"])
def test_is_killed(ddl_strategy):
    if ddl_strategy.cluster_resolver.task_id == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

@pytest.mark.ddl(strategies=["mirrored"])
def test_is_driven(ddl_cluster):
    task = ddl_cluster.tasks[0]
    ddl_cluster.suspend(task)
    ddl_cluster.resume(task)
    assert "stdio_worker.py" in ddl_cluster.stacks()[task]
    old = ddl_cluster.run(os.getpid)
    ddl_cluster.restart(task)
    assert ddl_cluster.run(os.getpid) != old
"""


@pytest.fixture(scope="module")
def run(new_project: Callable[..., Any]) -> Any:
    launcher = Path(__file__).with_name("pipe_launcher.py").read_text()
    project = new_project({"pipe_launcher.py": launcher, "conftest.py": CONFTEST, "test_pipes.py": TESTS})
    return project.pytest("--ddl-launcher=pipes", "-rA", timeout=400)


@pytest.mark.parametrize("variant", ["mirrored", "multi_worker_mirrored"])
def test_output_of_a_rank_does_not_disturb_the_channel(run: Any, variant: str) -> None:
    case = run[f"test_passes[{variant}]"]
    assert case.outcome == "passed", case.text
    for text in ("printed by the test", "written by the test", "written by a child"):
        assert text in run.stdout


def test_a_failure_is_reported_with_its_message_and_output(run: Any) -> None:
    case = run["test_fails[mirrored]"]
    assert case.outcome == "failed"
    assert "a message of the test" in case.text
    assert "printed by the test" in run.stdout


def test_a_killed_rank_is_reported(run: Any) -> None:
    case = run["test_is_killed[multi_worker_mirrored]"]
    assert case.outcome == "failed"
    assert "rank 1 of 2 (worker:1) was killed by SIGKILL" in case.text


def test_processes_are_suspended_inspected_and_restarted(run: Any) -> None:
    case = run["test_is_driven[mirrored]"]
    assert case.outcome == "passed", case.text


def test_nothing_is_left_behind(run: Any) -> None:
    assert (run.processes, run.files) == ([], [])
