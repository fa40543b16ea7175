"""Runs of pytest over emulated hosts, as users start them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster.warm.servers import use_of
from tests.hosts.conftest import Emulated, skip_below_tmp
from tests.plugin.conftest import Project
from tests.polling import wait_until

pytestmark = pytest.mark.slow

TESTS = """
import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored")


def test_runs(ddl_strategy):
    Path(f"network-{ddl_strategy.cluster_resolver.task_id}").write_text(os.readlink("/proc/self/ns/net"))
    assert ddl_strategy.num_replicas_in_sync == 2


def test_fails(ddl_strategy):
    assert ddl_strategy.cluster_resolver.task_id == 0, "wrong on this rank"


@pytest.mark.skipif("not os.environ.get('PYTEST_WAITS')", reason="waits")
def test_waits(ddl_strategy):
    Path("waiting").touch()
    signal.pause()


def train(run):
    import numpy as np
    import tensorflow as tf

    with run.strategy.scope():
        weight = tf.Variable(1.0)
    run.watch(variables=[weight])
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(1, 17, dtype="float32")).batch(run.global_batch_size)

    @tf.function
    def step(iterator):
        def replica(batch):
            gradient = tf.reduce_sum(batch * weight) / run.global_batch_size
            context = tf.distribute.get_replica_context()
            weight.assign_sub(0.01 * context.all_reduce("SUM", gradient))
            return gradient

        return run.strategy.reduce("SUM", run.strategy.run(replica, args=(next(iterator),)), axis=None)

    for loss in run.steps(step, dataset):
        pass


def test_trains(ddl_equivalence):
    ddl_equivalence(train, global_batch_size=4, steps=3)
"""


@pytest.fixture
def project(emulated: Emulated, new_project: Callable[..., Project]) -> Project:
    # Emulated hosts are possible here, or the test is skipped.
    emulated.close()
    return new_project({"test_hosts.py": TESTS})


@pytest.fixture
def elsewhere(project: Project) -> Iterator[Project]:
    """Return the project in a folder that hosts see that have a /tmp of their own."""
    skip_below_tmp()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        project.folder = Path(folder)
        project.write("test_hosts.py", TESTS)
        yield project


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly(each_commit=("distribution0",))
@pytest.mark.parametrize("distribution", [(), ("-n2",)])
def test_ranks_run_on_both_hosts(project: Project, distribution: tuple[str, ...]) -> None:
    before = use_of(project.server)
    done = project.pytest("--ddl-launcher=netns[hosts=2]", *distribution)
    assert done.status == 1
    assert done["test_runs[multi_worker_mirrored]"].outcome == "passed", done.stdout
    assert done["test_trains[multi_worker_mirrored]"].outcome == "passed", done.stdout
    failed = done["test_fails[multi_worker_mirrored]"]
    assert failed.outcome == "failed"
    assert "[rank 1 of 2]" in failed.text
    assert "wrong on this rank" in failed.text
    assert len({(project.folder / f"network-{rank}").read_text() for rank in range(2)}) == 2
    after = use_of(project.server)
    assert before is not None
    assert after is not None
    # Both hosts fork from the server, which is in another network. Without root, a host has another user namespace too.
    assert after["runs"] >= before["runs"] + (2 if os.geteuid() == 0 else 0)
    assert (done.processes, done.files) == ([], [])


COUNTED = """
    import os
    from pytest_ddl.hosts.transports.netns import Netns

    def note(event):
        with open("events", "a") as log:
            print(event, os.environ.get("PYTEST_XDIST_WORKER", "controller"), file=log)

    class Counted(Netns):
        def __init__(self, arguments):
            super().__init__(arguments)
            note("takes")

        def close(self):
            super().close()
            note("returns")

    def pytest_ddl_register_transports(transports):
        transports["counted"] = Counted
"""


@pytest.mark.slow
@pytest.mark.parametrize("required", [(), ("--ddl-require=multi_worker_mirrored",)])
def test_the_controller_of_xdist_keeps_no_hosts(project: Project, required: tuple[str, ...]) -> None:
    project.write("conftest.py", COUNTED)
    done = project.pytest("--ddl-launcher=counted[hosts=2]", "-n2", "-k", "runs", *required)
    assert done["test_runs[multi_worker_mirrored]"].outcome == "passed", done.stdout
    events = (project.folder / "events").read_text().splitlines()
    assert "takes gw0" in events
    if required:
        # It asks the hosts, and leaves them before its workers begin.
        assert events.index("returns controller") < min(events.index("takes gw0"), events.index("takes gw1"))
    else:
        assert "takes controller" not in events


def test_a_comparison_needs_a_folder_that_all_hosts_share(elsewhere: Project) -> None:
    command = ("--ddl-launcher=netns[tmp=own]", "-k", "trains or runs")
    done = elsewhere.pytest(*command)
    assert done["test_runs[multi_worker_mirrored]"].outcome == "passed", done.stdout
    failed = done["test_trains[multi_worker_mirrored]"]
    assert failed.outcome == "failed"
    assert "the host host0 does not see the folder " in failed.text
    assert "give a folder that all hosts share with --ddl-shared-dir=DIR" in failed.text
    done = elsewhere.pytest(*command, f"--ddl-shared-dir={elsewhere.folder}")
    assert done["test_trains[multi_worker_mirrored]"].outcome == "passed", done.stdout
    assert not list(elsewhere.folder.glob("pytest-ddl-*"))


@pytest.mark.nightly(each_commit=("9",))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_an_end_by_a_signal(project: Project, number: signal.Signals) -> None:
    process = project.start("--ddl-launcher=netns[hosts=2]", "-k", "waits", env={"PYTEST_WAITS": "1"})
    wait_until((project.folder / "waiting").exists, "the test did not begin")
    process.send_signal(number)
    done: Any = project.finish(process, 30.0)
    assert done.status != 0
    assert (done.processes, done.files) == ([], [])


MEASURES = """
from pytest_ddl.bench import measure
from test_hosts import train

if __name__ == "__main__":
    matrix = measure(train, ["multi_worker_mirrored"], batch_per_replica=4, seconds=0.5, blocks=2, steps_per_block=2)
    (launch,) = matrix.launches
    print(launch.machine["launcher"], len(launch.ranks))
"""


@pytest.mark.nightly
def test_measurements_run_on_hosts_with_files_of_their_own(elsewhere: Project) -> None:
    # The orders of pytest arrive through a socket. Such a long path leaves it in the own /tmp of this machine.
    shared = elsewhere.folder / ("shared" * 18)
    shared.mkdir()
    elsewhere.write("measures.py", MEASURES)
    launcher = "netns[hosts=2,tmp=own]"
    environ = {"PYTEST_DDL_SHARED_DIR": str(shared), "PYTEST_DDL_LAUNCHER": launcher}
    done = elsewhere.finish(elsewhere.start("measures.py", python=True, env=environ))
    assert done.status == 0, done.stdout + done.stderr
    assert done.stdout.strip() == f"{launcher} 2"
    assert (done.processes, done.files, list(shared.iterdir())) == ([], [], [])


LOSES = """
import json
import os
import subprocess
from pathlib import Path

import pytest


def loses(run):
    if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index") == 1:
        # Only this host sees another folder in its place from now on.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", os.environ["PYTEST_SHARED"]], check=True)
    if "TF_CONFIG" in os.environ:
        Path(os.environ["PYTEST_SHARED"], "no", "checkpoint").write_text("1")
    run.watch(variables=[])


@pytest.mark.ddl(strategies="multi_worker_mirrored")
def test_loses(ddl_equivalence):
    ddl_equivalence(loses, global_batch_size=4, steps=1)
"""


def test_a_shared_folder_that_a_host_loses_is_named(elsewhere: Project) -> None:
    shared = elsewhere.folder / "shared"
    shared.mkdir()
    elsewhere.write("test_hosts.py", LOSES)
    options = ("--ddl-launcher=netns[tmp=own]", f"--ddl-shared-dir={shared}")
    failed = elsewhere.pytest(*options, env={"PYTEST_SHARED": str(shared)})["test_loses[multi_worker_mirrored]"]
    assert failed.outcome == "failed"
    assert f"the host host1 does not see the folder {shared}/pytest-ddl-" in failed.text
    assert f"; mount {shared} there" in failed.text
