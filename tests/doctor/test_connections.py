"""Loopback, ports, names, proxies and namespaces: right here, and named if an obstacle is planted."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from pytest_ddl.cluster import resources
from pytest_ddl.doctor import connections
from pytest_ddl.doctor.examination import Status
from tests.doctor.child import findings, permits


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses of names, in place of those of the system."""
    known: dict[str, list[str]] = {}

    def addresses_of(name: str) -> list[str]:
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[name]

    monkeypatch.setattr(connections, "addresses_of", addresses_of)
    monkeypatch.setattr(socket, "gethostname", lambda: "node")
    return known


def test_connections_work_here() -> None:
    for probe in (connections.loopback, connections.ports, connections.localhost):
        assert probe().status is Status.OK, probe()


def test_a_network_without_loopback_is_a_problem() -> None:
    permits("unshare", "-Urn")
    found = findings(inside=("unshare", "-Urn"))
    for probe in ("loopback", "ports"):
        assert found[probe][0]["status"] == "problem"
    assert found["loopback"][0]["found"].startswith("the loopback device is down: connecting to 127.0.0.1 failed (")
    assert found["loopback"][0]["fix"].startswith("bring it up with `ip link set lo up`")
    assert re.match(r"connecting to port \d+ of 127.0.0.1 failed \(", found["ports"][0]["found"])


def test_too_few_free_ports_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "LAST_PORT", resources.FIRST_PORT + connections.PORTS - 1)
    found = connections.ports()
    assert found.status is Status.PROBLEM
    assert found.found.startswith("no 16 free ports between 18000 and ")
    assert found.fix.startswith("`ss -lntup` lists")


@pytest.mark.parametrize(
    ("text", "status"),
    [("32768\t60999\n", Status.OK), ("1024 65535\n", Status.WARNING), ("1024 17999", Status.OK), ("odd", Status.OK)],
)
def test_outgoing_connections_in_the_range_are_a_warning(
    text: str, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(connections, "EPHEMERAL", tmp_path / "range")
    found = connections.ports()
    assert found.status is status
    if status is Status.WARNING:
        assert found.found.startswith("outgoing connections use ports 1024 to 65535")
        assert found.fix == 'sysctl -w net.ipv4.ip_local_port_range="32768 60999"'


@pytest.mark.parametrize(
    ("addresses", "status", "said"),
    [
        (["10.1.2.3"], Status.OK, "the host name node means 10.1.2.3"),
        (["127.0.1.1"], Status.WARNING, "the host name node means 127.0.1.1, where other hosts do not find this one"),
        (["127.0.1.1", "fe80::1%eth0"], Status.OK, "the host name node means 127.0.1.1, fe80::1%eth0"),
        ([], Status.WARNING, "the host name node has no address (Name or service not known)"),
    ],
)
def test_host_name(addresses: list[str], status: Status, said: str, resolver: dict[str, list[str]]) -> None:
    if addresses:
        resolver["node"] = addresses
    found = connections.host_name()
    assert (found.status, found.found) == (status, said)
    assert ("/etc/hosts" in found.fix) == (status is Status.WARNING)


def test_what_the_look_up_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may not read the libraries of Python has no encoding for names."""

    def addresses_of(_name: str) -> list[str]:
        raise LookupError("unknown encoding: idna")

    monkeypatch.setattr(connections, "addresses_of", addresses_of)
    with pytest.raises(LookupError, match="idna"):
        connections.localhost()


@pytest.mark.parametrize(
    ("addresses", "status", "said"),
    [
        (["::1", "127.0.0.1"], Status.OK, "the name localhost means 127.0.0.1"),
        (["::1"], Status.PROBLEM, "the name localhost means ::1, not 127.0.0.1"),
        ([], Status.PROBLEM, "the name localhost has no address (Name or service not known)"),
    ],
)
def test_localhost(addresses: list[str], status: Status, said: str, resolver: dict[str, list[str]]) -> None:
    if addresses:
        resolver["localhost"] = addresses
    found = connections.localhost()
    assert (found.status, found.found) == (status, said)


@pytest.mark.parametrize(
    ("environ", "fix"),
    [
        ({}, ""),
        ({"http_proxy": "http://proxy:3128"}, "export NO_PROXY='localhost,127.0.0.1' no_proxy='localhost,127.0.0.1'"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "*", "NO_PROXY": "*"}, ""),
        (
            {"https_proxy": "http://proxy:3128", "no_proxy": "own", "NO_PROXY": "own"},
            "export NO_PROXY='own,localhost,127.0.0.1' no_proxy='own,localhost,127.0.0.1'",
        ),
    ],
)
def test_proxies(environ: dict[str, str], fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = connections.proxies()
    assert found.status is (Status.WARNING if fix else Status.OK)
    assert found.fix == fix
    for name, value in re.findall(r"(\w+)='(.*?)'", fix):
        monkeypatch.setenv(name, value)
    assert connections.proxies().status is Status.OK, "the fix does not mend it"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child may take long to start on a busy machine."""
    monkeypatch.setattr(connections, "CHILD_SECONDS", 30.0)


@pytest.mark.usefixtures("patient")
def test_a_namespace_is_possible_where_unshare_is() -> None:
    permits("unshare", "-Un")
    assert connections.namespace().status is Status.OK


@pytest.mark.usefixtures("patient")
def test_a_namespace_that_is_refused_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = (
        "import runpy, sys\nisolate = runpy.run_path(sys.argv[1])['isolate']\n"
        "def refuse(_flags): raise PermissionError(1, 'Operation not permitted')\n"
        "isolate.__globals__['_unshare'] = refuse\nisolate()"
    )
    monkeypatch.setattr(connections, "_ISOLATE", refused)
    found = connections.namespace()
    assert found.status is Status.WARNING
    reason = "the kernel refuses a network namespace (Operation not permitted)"
    assert found.found == f"--ddl-network=isolated is not possible: {reason}"
    assert found.fix.startswith("allow user namespaces (sysctl user.max_user_namespaces")


def test_a_namespace_that_takes_long_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_ISOLATE", "import signal; signal.pause()")
    monkeypatch.setattr(connections, "CHILD_SECONDS", 0.2)
    assert connections.namespace().found.endswith("was not found out within 0.2 s")
