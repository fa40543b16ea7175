"""Hosts are cut off from each other or get another bandwidth, and faults cut the host of a task off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.faults.rank import point_log, striking
from pytest_ddl.faults.rank.fault import Fault, Point
from pytest_ddl.hosts.partitions import Partitions
from tests.hosts.conftest import Emulated
from tests.plugin.conftest import Project

ECHO = """
import socket
listener = socket.create_server(("0.0.0.0", 18000))
print("listens", flush=True)
connection, _peer = listener.accept()
while data := connection.recv(1):
    connection.sendall(data)
"""
ASKS = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 18000), timeout=5)
for number, line in enumerate(sys.stdin):
    connection.settimeout(float(line))
    message = bytes([number])
    connection.sendall(message)
    try:
        # Answers to earlier messages may come first.
        while connection.recv(1) != message:
            pass
        print("answer", flush=True)
    except TimeoutError:
        print("silence", flush=True)
"""
FAULT = Fault("net-partition", "worker:1", Point("before", "step", 3))


class Launcher:
    """The parts of a launcher that partitions need."""

    def __init__(self, transport: Any, hosts: Any) -> None:
        self.group = type("Group", (), {"transport": transport, "hosts": hosts})()


class Reservation:
    addresses = ()
    hosts = (0, 1)

    def release(self) -> None: ...


@pytest.fixture
def ask(emulated: Emulated) -> Iterator[Callable[[float], str]]:
    """Return a function that sends a message from the first host to the second, and waits so long for the answer."""
    first, second = emulated.network.hosts()
    pipe = subprocess.PIPE
    with ExitStack() as stack:

        def start(host: Any, *program: str) -> subprocess.Popen[str]:
            command = emulated.network.command(host, [sys.executable, "-c", *program])
            started = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            stack.callback(started.kill)
            return started

        server = start(second, ECHO)
        assert server.stdout is not None
        assert server.stdout.readline() == "listens\n"
        client = start(first, ASKS, second.address)

        def asked(seconds: float) -> str:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(f"{seconds}\n")
            client.stdin.flush()
            return client.stdout.readline().strip()

        yield asked


def test_nothing_arrives_at_a_host_that_is_cut_off(emulated: Emulated, ask: Callable[[float], str]) -> None:
    network = emulated.network
    partitions = Partitions.over(Launcher(network, network.hosts()))  # type: ignore[arg-type]
    assert partitions is not None
    assert ask(10.0) == "answer"
    partitions.cut(Reservation(), 1, 1000.0)
    partitions.heal_due()
    assert ask(0.3) == "silence"
    partitions.heal()
    # TCP sends again what was lost.
    assert ask(10.0) == "answer"
    partitions.cut(Reservation(), 1, 0.0)
    assert ask(0.3) == "silence"
    partitions.heal_due()
    assert ask(10.0) == "answer"


def test_the_bandwidth_changes_while_programs_run(emulated: Emulated) -> None:
    first, second = emulated.network.hosts()

    def limits(host: Any) -> str:
        show = emulated.network.command(host, ["tc", "qdisc", "show", "dev", "eth0"])
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout

    assert "tbf" not in limits(first)
    emulated.network.limit(200)
    assert all("rate 200Mbit burst 64Kb" in limits(host) for host in (first, second))
    emulated.network.limit(2500, second)
    assert "rate 200Mbit" in limits(first)
    # This bucket holds half a millisecond.
    assert "rate 2500Mbit burst 15" in limits(second)
    emulated.network.limit(None, first)
    assert "tbf" not in limits(first)
    assert "tbf" in limits(second)


def test_only_emulated_hosts_can_be_cut_off(emulated: Emulated) -> None:
    hosts = emulated.network.hosts()
    assert Partitions.over(object()) is None  # type: ignore[arg-type]
    assert Partitions.over(Launcher(object(), hosts)) is None  # type: ignore[arg-type]
    assert Partitions.over(Launcher(emulated.network, hosts[:1])) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 2])
def test_a_rank_waits_until_its_host_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    waited = []
    monkeypatch.setattr(point_log, "connections_of_host", lambda: count)
    monkeypatch.setattr(point_log, "_wait_until_struck", lambda _path, fault: waited.append(fault))
    points = point_log.Points(tmp_path / "log", [FAULT], cut_outside=True)
    points.begin("step", 3)
    points.close()
    (reached,) = point_log.read(tmp_path / "log")
    assert (reached.struck, reached.connections) == (FAULT if count else None, count)
    assert waited == ([FAULT] if count else [])


def test_connections_to_other_hosts_are_counted(emulated: Emulated, ask: Callable[[float], str]) -> None:
    assert ask(10.0) == "answer"
    first, _second = emulated.network.hosts()
    program = [sys.executable, "-c", f"from {striking.__name__} import *; print(connections_of_host())"]
    done = subprocess.run(emulated.network.command(first, program), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


TESTS = """
import os
from functools import partial

import pytest
import recovery_programs as programs
from pytest_ddl.faults.verdict import RecoveryVerdict

pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=120)
LONG = "net-partition worker:1 in step 6, collective 1"


def train(run, **given):
    assert "PYTEST_DDL_RELAYED_TASKS" not in os.environ
    programs.checkpointed(run, **given)


def test_long(ddl_equivalence):
    report = ddl_equivalence(
        train, global_batch_size=programs.BATCH, faults=LONG, exact=True, max_lost_steps=2
    )
    (trial,) = report.trials
    assert (trial.verdict, trial.attempts, trial.work_lost) == (RecoveryVerdict.EXACT, 2, 1)


def test_short(ddl_equivalence):
    report = ddl_equivalence(
        train,
        global_batch_size=programs.BATCH,
        faults="net-partition worker:1 before step 3 for 1 s",
        exact=True,
    )
    assert {(trial.verdict, trial.attempts) for trial in report.trials} == {(RecoveryVerdict.EXACT, 1)}


def test_mistake(ddl_equivalence):
    program = partial(train, sin="forgets the step")
    ddl_equivalence(program, global_batch_size=programs.BATCH, faults=LONG)
"""


@pytest.mark.slow
def test_a_fault_cuts_the_host_of_a_task_off(emulated: Emulated, new_project: Callable[..., Project]) -> None:
    emulated.close()
    programs = Path(__file__).parents[1] / "faults" / "recovery_programs.py"
    project = new_project({"test_partitions.py": TESTS, "recovery_programs.py": programs.read_text()})
    done = project.pytest("--ddl-launcher=netns[hosts=2]")
    assert done["test_long[multi_worker_mirrored]"].outcome == "passed", done.stdout
    assert done["test_short[multi_worker_mirrored]"].outcome == "passed", done.stdout
    failed = done["test_mistake[multi_worker_mirrored]"]
    assert failed.outcome == "failed"
    assert "replayed" in failed.text
    assert (done.processes, done.files) == ([], [])
