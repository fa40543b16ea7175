"""TensorFlow's servers are out of reach of other hosts, or of all other processes if they are isolated."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from pytest_ddl.cluster import network, ship
from pytest_ddl.cluster.network import IsolationError, servers_kept_local
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness, process_harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.launchers import built_in_launchers
from pytest_ddl.strategies.registry import StrategyRegistry

_LEAVE = """
import os, socket
from pytest_ddl.cluster import network
if {without_rights}:
    real = network._unshare
    def refuse(flags):
        if flags == network._CLONE_NEWNET:
            raise PermissionError(1, "Operation not permitted")
        real(flags)
    network._unshare = refuse
before = os.getuid(), os.getgid(), os.readlink("/proc/self/ns/net")
network.isolate()
assert (os.getuid(), os.getgid()) == before[:2]
assert os.readlink("/proc/self/ns/net") != before[2]
with socket.create_server(("", 0)) as server, socket.create_connection(("127.0.0.1", server.getsockname()[1])):
    print("the loopback device carries connections")
"""
_SERVE = """
import contextlib, socket, sys
from pytest_ddl.cluster.network import servers_kept_local
with servers_kept_local() if sys.argv[1] == "kept" else contextlib.nullcontext():
    server = socket.create_server(("", 20000))
with socket.create_connection(("127.0.0.1", 20000)):
    print("listening", flush=True)
sys.stdin.read()
"""
_CONNECT = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], 20000)))"


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def own_servers() -> list[tuple[int, str]]:
    """Return the TCP port of each server of this process, and the device that it is tied to."""
    found = []
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            with socket.socket(fileno=os.dup(connection.fd)) as server:
                device = server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
            found.append((connection.laddr.port, device.rstrip(b"\0").decode()))
    return found


def servers(harness: Harness, variant: str) -> list[tuple[int, str]]:
    with harness.cluster(harness.registry.parse_variant(variant), DdlMark()) as cluster:
        answers = cluster.ask(RequestKind.CALL, ship.pack(own_servers), deadline=time.monotonic() + 60)
        return [server for answer in answers for server in ship.unpack(answer.body)]


def test_servers_that_are_started_inside_are_tied_and_others_are_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        with servers_kept_local():
            kept = socket.create_server(("127.0.0.1", 0))
            unused = socket.socket()
        with kept, unused, socket.create_server(("127.0.0.1", 0)) as after:
            devices = [s.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) for s in (before, kept, after)]
            assert devices == [b"", b"lo\0", b""]
            with socket.create_connection(kept.getsockname()):
                pass


@pytest.mark.parametrize(
    ("variant", "fewest"), [("multi_worker_mirrored", 2), ("parameter_server", 3), ("mirrored", 0)]
)
def test_every_server_of_a_cluster_is_tied_to_the_loopback_device(variant: str, fewest: int) -> None:
    found = servers(process_harness(), variant)
    assert len(found) >= fewest
    assert {device for _port, device in found} <= {"lo"}


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces that a cable joins; the first has the address 10.99.0.1."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("two hosts on one machine need root and the command ip (iproute2)")
    hosts = f"ddl-a-{os.getpid()}", f"ddl-b-{os.getpid()}"
    made = []
    try:
        for host in hosts:
            added = run("ip", "netns", "add", host)
            if added.returncode != 0:
                pytest.skip(f"no network namespace can be made here: {added.stderr.strip()}")
            made.append(host)
        run("ip", "-n", hosts[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", hosts[1])
        for number, host in enumerate(hosts, start=1):
            run("ip", "-n", host, "addr", "add", f"10.99.0.{number}/24", "dev", "cable")
            for device in ("cable", "lo"):
                run("ip", "-n", host, "link", "set", device, "up")
        yield hosts
    finally:
        for host in made:
            run("ip", "netns", "del", host)


@pytest.mark.parametrize(("how", "reached"), [("open", True), ("kept", False)])
def test_another_host_does_not_reach_a_server_that_is_kept_local(
    two_hosts: tuple[str, str], how: str, reached: bool
) -> None:
    here, there = (["ip", "netns", "exec", host, sys.executable, "-c"] for host in two_hosts)
    with subprocess.Popen([*here, _SERVE, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == "listening\n"
        status = int(run(*there, _CONNECT, "10.99.0.1").stdout)
    assert (status == 0) is reached


@pytest.mark.parametrize("without_rights", [False, True], ids=["as it is", "without the right to make a network"])
def test_a_process_leaves_the_network_of_its_machine(without_rights: bool) -> None:
    ran = run(sys.executable, "-c", _LEAVE.format(without_rights=without_rights))
    if "IsolationError" in ran.stderr:
        pytest.skip(ran.stderr.splitlines()[-1])
    assert ran.stdout == "the loopback device carries connections\n", ran.stderr


def test_a_refusal_names_its_reason_and_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_flags: int) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(network, "_unshare", refuse)
    with pytest.raises(IsolationError, match=r"Operation not permitted.*user\.max_user_namespaces.*--ddl-network"):
        network.isolate()


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "reached"), [("shared", True), ("isolated", False)])
def test_servers_of_an_isolated_cluster_are_reached_by_their_cluster_only(setting: str, reached: bool) -> None:
    ran = run(sys.executable, "-c", _LEAVE.format(without_rights=False))
    if ran.returncode != 0:
        pytest.skip(ran.stderr.splitlines()[-1])
    settings = resolve_without_pytest({"PYTEST_DDL_NETWORK": setting})
    harness = Harness(settings, StrategyRegistry(), built_in_launchers(settings))
    try:
        with harness.cluster(harness.registry.parse_variant("multi_worker_mirrored"), DdlMark()) as cluster:
            answers = cluster.ask(RequestKind.CALL, ship.pack(own_servers), deadline=time.monotonic() + 60)
            # The cluster has started: its first all-reduce has gone over these ports.
            ports = [port for answer in answers for port, _device in ship.unpack(answer.body)]
            statuses = []
            for port in ports:
                with socket.socket() as probe:
                    statuses.append(probe.connect_ex(("127.0.0.1", port)))
    finally:
        harness.close()
    assert len(ports) == 2
    assert [status == 0 for status in statuses] == [reached, reached]
