"""Transport ``ray``, over a real cluster of two nodes on this machine that accepts only a token."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddl.hosts.transport import TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.hosts.transports import ray_bridge
from pytest_ddl.hosts.transports.ray_nodes import Ray
from pytest_ddl.installing import install_line
from tests.polling import wait_until

NODES = ["node-a", "node-b"]
FAST = 45.0
"""Maximum seconds of an answer that needs no training, on a busy machine."""
GONE = 30.0
"""Seconds after a kill of the bridge in which all processes on the node have ended."""

with_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason=f"the package ray is not installed; run `{install_line('ray')}`",
)


@dataclass
class RayCluster:
    address: str
    environ: dict[str, str]
    """Variables that let a process in."""
    folders: list[Path]
    """Folder for temporary files of each node."""

    def option(self, *settings: str) -> str:
        return f"--ddl-launcher=ray[{','.join([f'address={self.address}', *settings])}]"

    def on_nodes(self) -> Iterator[tuple[psutil.Process, str]]:
        """Yield the processes on the nodes with their command lines."""
        own = {str(folder) for folder in self.folders}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") in own and process.status() != psutil.STATUS_ZOMBIE:
                    yield process, " ".join(process.cmdline())

    def programs(self) -> list[str]:
        """Return the command lines of what runs on the nodes for this transport."""
        # The rest is Ray's own: its raylets, and its workers and agents, which have a title.
        return [line for _, line in self.on_nodes() if line and "/ray/" not in line and not line.startswith("ray::")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    base = tmp_path_factory.mktemp("ray")
    folders = [base / name for name in NODES]
    for folder in folders:
        folder.mkdir()
    # Ray's sockets need a short path.
    own = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    with (
        open(base / "log", "wb") as log,
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ray_cluster.py")), own, *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environ},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            address = next((line.strip() for line in lines if re.fullmatch(r"[\w.:]+:\d+\n", line)), "")
            assert address, (base / "log").read_text()
            yield RayCluster(address, environ, folders)
        finally:
            process.communicate()
            shutil.rmtree(own, ignore_errors=True)


@pytest.fixture
def transport(cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ray]]:
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    made = []

    def make(**given: str) -> Ray:
        made.append(Ray(TransportArguments("ray", tmp_path, {}, given={"address": cluster.address, **given})))
        return made[-1]

    yield make
    for one in made:
        one.close()


TESTS = """
    import os
    import threading

    import pytest

    def test_all(ddl_strategy):
        print("on", os.environ["HOSTNAME"], "with", os.environ.get("OMP_NUM_THREADS"), os.nice(0))
        import tensorflow as tf
        total = ddl_strategy.reduce("SUM", ddl_strategy.run(lambda: tf.constant(1.0)), axis=None)
        assert float(total) == 2

    def test_one(ddl_strategy):
        assert os.environ["HOSTNAME"] != "node-b"

    @pytest.mark.skipif("STARTED" not in os.environ, reason="only for the test that kills")
    def test_waits(ddl_strategy):
        open(os.path.join(os.environ["STARTED"], os.environ["HOSTNAME"]), "w").close()
        threading.Event().wait()
"""


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project({"test_x.py": TESTS})


@pytest.mark.slow
@with_ray
def test_ranks_run_on_both_nodes(cluster: RayCluster, project: Any) -> None:
    arguments = ["--ddl-strategy=multi_worker_mirrored", cluster.option(), "-k", "all or one"]
    outcome = project.pytest(*arguments, env=cluster.environ)
    said = outcome.stdout + outcome.stderr
    assert {name.partition("[")[0]: result for name, result in outcome.outcomes.items()} == {
        "test_all": "passed",
        "test_one": "failed",
    }, said
    text = outcome["test_all[multi_worker_mirrored]"].text
    nice = os.nice(0)
    # Ray gives an actor one thread and a low priority, which the ranks must not have.
    limit = os.environ.get("OMP_NUM_THREADS")
    assert sorted(re.findall("^on node-.*", text, re.MULTILINE)) == [f"on {name} with {limit} {nice}" for name in NODES]
    found = outcome["test_one[multi_worker_mirrored]"].text
    assert re.search(r"rank [01] of 2", found), found
    assert "'node-b' != 'node-b'" in found
    assert outcome.processes == []
    wait_until(lambda: not cluster.programs(), "a program still runs on a node", GONE)
    assert [list(folder.iterdir()) for folder in cluster.folders] == [[], []]


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly(each_commit=("bridge",))
@pytest.mark.slow
@with_ray
@pytest.mark.parametrize("target", ["bridge", "actor", "pytest"])
def test_a_killed_process_gives_a_verdict_and_leaves_nothing(
    cluster: RayCluster, project: Any, tmp_path: Path, target: str
) -> None:
    arguments = ["--ddl-strategy=multi_worker_mirrored", cluster.option(), "-k", "waits"]
    process = project.start(*arguments, "-p", "no:cacheprovider", env={**cluster.environ, "STARTED": str(tmp_path)})
    try:
        wait_until(
            lambda: process.poll() is not None or all((tmp_path / name).exists() for name in NODES),
            "no rank has started",
        )
        children = psutil.Process(process.pid).children()
        bridges = [one for one in children if {"run", str(ray_bridge.__file__)} <= {*one.cmdline()}]
        actors = [one for one, line in cluster.on_nodes() if line.startswith("ray::Holder")]
        assert (len(bridges), len(actors)) == (2, 2)
        struck = {"bridge": bridges[0], "actor": actors[0], "pytest": psutil.Process(process.pid)}[target]
        struck.send_signal(signal.SIGKILL)
        started = time.monotonic()
        stdout, stderr = process.communicate(timeout=60.0)
    finally:
        process.kill()
    seconds = time.monotonic() - started
    assert seconds < FAST, f"the verdict took {seconds:.1f} s"
    wait_until(lambda: not cluster.programs(), f"{cluster.programs()} still run", GONE)
    print(f"verdict after {seconds:.1f} s, nothing left after {time.monotonic() - started:.1f} s")
    assert project.processes() == []
    assert [list(folder.iterdir()) for folder in cluster.folders] == [[], []]
    if target == "pytest":
        # Nobody removes the session's folder on this machine if pytest is killed.
        for left in project.temporary.iterdir():
            shutil.rmtree(left)
    else:
        assert "1 failed" in stdout or "1 error" in stdout, stdout + stderr
        assert "the connection to the host" in stdout, stdout + stderr


@pytest.mark.slow
@with_ray
def test_a_run_that_cannot_be_placed_is_a_wrong_use(cluster: RayCluster, project: Any) -> None:
    arguments = ["--ddl-strategy=multi_worker_mirrored", cluster.option("hosts=3", "timeout=0.5")]
    outcome = project.pytest(*arguments, env=cluster.environ)
    assert outcome.status == pytest.ExitCode.USAGE_ERROR, outcome.stderr
    assert outcome.stderr.startswith("ERROR: --ddl-launcher=ray: hosts=3 with cpus=1"), outcome.stderr
    assert outcome.processes == []


@pytest.mark.slow
@with_ray
def test_a_program_has_the_streams_and_the_status_of_its_command(transport: Callable[..., Ray]) -> None:
    ray = transport(hosts="2")
    hosts = ray.hosts()
    assert len({host.name for host in hosts}) == 2
    assert [host.slots for host in hosts] == [2, 2]
    data = os.urandom(3 << 20)
    command = ray.command(hosts[0], ["sh", "-c", "echo warning >&2; cat; exit 7"])
    done = subprocess.run(command, input=data, capture_output=True)
    assert (done.stdout == data, done.stderr, done.returncode) == (True, b"warning\n", 7)
    done = subprocess.run(ray.command(hosts[1], ["missing-program"]), stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"missing-program: No such file or directory\n", 127)
    on = [subprocess.check_output(ray.command(host, ["printenv", "HOSTNAME"]), text=True).strip() for host in hosts]
    assert sorted(on) == NODES


@pytest.mark.slow
@with_ray
def test_a_program_that_ignores_the_end_of_its_command_is_killed(
    transport: Callable[..., Ray], cluster: RayCluster
) -> None:
    ray = transport(hosts="1")
    program = ["sh", "-c", "sleep 1000 & trap '' TERM; echo ready; while :; do sleep 1; done"]
    with subprocess.Popen(
        ray.command(ray.hosts()[0], program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        assert cluster.programs()
        command.kill()
    wait_until(lambda: not cluster.programs(), f"{cluster.programs()} still run", 2 * GONE)


@pytest.mark.nightly(each_commit=("cpus",))
@pytest.mark.slow
@with_ray
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts": "3", "timeout": "0.5"}, r"hosts=3 with cpus=1 .* timeout=0.5 s; .*: 2 \(.*CPU=2.*free CPUs .*: 4;"),
        ({"cpus": "3", "timeout": "0.5"}, r"hosts=all with cpus=3 .* with so many CPUs: 0, .*ray start"),
        ({"address": "127.0.0.1:1"}, r"address='127.0.0.1:1': nothing answers there .*ray start --head"),
    ],
    ids=["nodes", "cpus", "address"],
)
def test_what_cannot_be_placed_is_said_fast(transport: Callable[..., Ray], given: dict[str, str], says: str) -> None:
    ray = transport(**given)
    started = time.monotonic()
    with pytest.raises(TransportError, match=rf"--ddl-launcher=ray: {says}") as raised:
        ray.hosts()
    assert "\n" not in str(raised.value)
    assert time.monotonic() - started < FAST


@pytest.mark.nightly(each_commit=("RAY_AUTH_TOKEN",))
@pytest.mark.slow
@with_ray
@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_MODE"])
def test_a_cluster_refuses_a_process_without_its_token(
    transport: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, {"RAY_AUTH_TOKEN": "0" * 64, "RAY_AUTH_MODE": "disabled"}[name])
    ray = transport()
    with pytest.raises(TransportError, match="refuses the token of this process; set RAY_AUTH_MODE=token"):
        ray.hosts()


def test_without_ray_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TransportError, match=re.escape(install_line("ray"))):
        Ray(TransportArguments("ray", tmp_path, {}))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts": "0"}, "hosts='0' is not a positive number of nodes"),
        ({"cpus": "half"}, "cpus='half' is not a positive number of CPUs"),
        ({"cpus": ""}, "cpus='' is not a positive number of CPUs"),
        ({"timeout": "soon"}, "timeout='soon' is not a positive number of seconds"),
        ({"timeout": "inf"}, "timeout='inf' is not a positive number of seconds"),
        ({"node": "2"}, "'node' is not a setting of ray"),
    ],
    ids=lambda value: "-".join(f"{key}={text}" for key, text in value.items()) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_named(tmp_path: Path, given: dict[str, str], says: str) -> None:
    with pytest.raises(TransportArgumentError, match=re.escape(says)):
        Ray(TransportArguments("ray", tmp_path, {}, given=given))
