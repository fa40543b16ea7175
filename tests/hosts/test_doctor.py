"""``pytest-ddl doctor --launcher``: each host by itself, and whether the hosts fit together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddl.cli import main
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.doctor import on_hosts
from pytest_ddl.hosts.group import HostGroup
from tests.hosts.conftest import Emulated

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["doctor", *arguments])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def connected(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    """Let the command find two emulated hosts under every name."""

    def group_of(_launcher: str, _hosts: str, folder: Path) -> HostGroup:
        return HostGroup(emulated, folder, sys.executable)

    monkeypatch.setattr(on_hosts, "group_of", group_of)
    return emulated


@pytest.mark.slow
def test_all_hosts_are_examined(connected: Emulated, doctor: Run) -> None:
    status, out, _err = doctor("--launcher=netns")
    assert status == 0, out
    assert out.startswith("host0: ")
    assert "\nhost1: " in out
    assert "between the hosts\n  ok  the hosts have the same versions and files, and reach each other\n" in out
    assert out.endswith("\nThese 2 hosts can run distributed TensorFlow tests\n")


@pytest.mark.slow
def test_a_problem_between_hosts_is_shown_with_its_fix(connected: Emulated, doctor: Run) -> None:
    cut = ["ip", "route", "add", "unreachable", "198.18.77.1/32"]
    subprocess.run(connected.command(connected.hosts()[1], cut), check=True)
    status, out, _err = doctor("--launcher=netns")
    assert status == 1
    assert "  problem: host1: it cannot reach host0: connecting to 198.18.77.1 port " in out
    assert "    fix: allow ports 18000 to 32000 between the hosts, or give another address\n" in out
    assert out.endswith("\nThese 2 hosts cannot run distributed TensorFlow tests yet\n")


@pytest.mark.slow
def test_json_has_the_hosts_and_what_is_between(connected: Emulated, doctor: Run) -> None:
    status, out, _err = doctor("--launcher=netns", "--json")
    found = json.loads(out)
    assert (status, found["problems"], found["between"]) == (0, 0, [])
    assert [host["host"] for host in found["hosts"]] == ["host0", "host1"]
    assert {"loopback", "cores"} <= {finding["probe"] for finding in found["hosts"][1]["findings"]}


@pytest.mark.slow
def test_a_host_that_cannot_be_reached_is_named(connected: Emulated, doctor: Run) -> None:
    connected.wrap = lambda _host, _command: ["sh", "-c", "echo no route >&2; exit 255"]
    status, out, err = doctor("--launcher=netns")
    assert (status, out) == (1, "")
    assert err == "pytest-ddl doctor: no connection to the host host0: no route\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--launcher=local"], "--launcher=local: 'local' is not a transport to several hosts; valid: ssh, "),
        (["--launcher=ssh"], "--launcher=ssh: ssh needs hosts: add --hosts=NAME,NAME"),
        (["--launcher=ssh["], "--launcher=ssh[: 'ssh[' is not of the form name or name[key=value,…]"),
        (["--hosts=a"], "--hosts=a needs --launcher, for example --launcher=ssh"),
        (["--launcher=netns", "--tensorflow"], "--tensorflow examines only this machine; leave out --launcher"),
    ],
)
def test_wrong_options_are_one_line(doctor: Run, arguments: list[str], message: str) -> None:
    status, out, err = doctor(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"pytest-ddl doctor: {message}")
    assert err.count("\n") == 1


def test_what_keeps_a_transport_from_its_hosts_is_a_problem(doctor: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> HostGroup:
        raise LaunchError("there are no hosts; make some with --ddl-hosts")

    monkeypatch.setattr(on_hosts, "group_of", refuse)
    assert doctor("--launcher=ssh") == (1, "", "pytest-ddl doctor: there are no hosts; make some with --hosts\n")
