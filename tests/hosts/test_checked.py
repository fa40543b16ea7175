"""An error in a plugin's transport is reported, with the method, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.hosts.checked import command_of, hosts_of
from pytest_ddl.hosts.group import HostGroup
from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.hosts.transports.registry import launcher_over

HOSTS = (Host("a"),)


class Given:
    """Transport with given answers. An exception is raised."""

    def __init__(self, hosts: Any = HOSTS, command: Any = ("true",)) -> None:
        self.found, self.words = hosts, command
        self.closed = 0

    def hosts(self) -> Any:
        return _answer(self.found)

    def command(self, _host: Host, _program: Any) -> Any:
        return _answer(self.words)

    def close(self) -> None:
        self.closed += 1


def _answer(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            [],
            r"^Given\.hosts\(\) of the transport returned no hosts; start some, or raise a TransportError that says",
        ),
        (None, r"^Given\.hosts\(\) of the transport raised TypeError: "),
        ("ab", r"returned 'a'; it must return Host\(name, address, slots\) for each$"),
        ([Host("a", address=12)], r"returned Host\(.*\); it must return Host\(name, address, slots\)"),  # type: ignore[arg-type]
        ([Host("a", slots=-1)], r"returned Host\(.*\); slots must be a number of ranks, or 0$"),
        ([Host("a"), Host("b"), Host("a")], r"returned the name 'a' twice; each host needs a name of its own$"),
        (KeyError("ENGINE"), r"^Given\.hosts\(\) of the transport raised KeyError: 'ENGINE'$"),
        (TransportError("no hosts; make some"), r"^no hosts; make some$"),
    ],
)
def test_wrong_hosts_are_named(hosts: Any, message: str, tmp_path: Path) -> None:
    transport = Given(hosts)
    with pytest.raises(LaunchError, match=message):
        hosts_of(transport)
    with pytest.raises(LaunchError, match=message):
        HostGroup(transport, tmp_path, "python3")
    assert transport.closed == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (None, r"^Given\.command\('a', …\) of the transport returned None; it must return a list: the program and its"),
        ([], r"returned \[\]; it must return a list"),
        ("ssh a", r"returned 'ssh a'; it must return a list"),
        (["ssh", Path("x")], r"returned PosixPath\('x'\) as a part of the command; each part must be a str$"),
        (ValueError("no"), r"^Given\.command\('a', …\) of the transport raised ValueError: no$"),
    ],
)
def test_a_wrong_command_is_named(command: Any, message: str, tmp_path: Path) -> None:
    transport = Given(command=command)
    with pytest.raises(LaunchError, match=message):
        command_of(transport, Host("a"), ["python3"])
    with pytest.raises(LaunchError, match=message):
        HostGroup(transport, tmp_path, "python3")
    assert transport.closed == 1
    assert list(tmp_path.iterdir()) == []


def test_something_else_is_no_transport(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"^None is no transport: it has no hosts, command, close$"):
        HostGroup(None, tmp_path, "python3")  # type: ignore[arg-type]


def test_hosts_for_a_transport_that_finds_its_own_are_refused(tmp_path: Path) -> None:
    transport = Given()

    def make(_arguments: TransportArguments) -> Given:
        return transport

    with pytest.raises(TransportArgumentError, match=r"^boxes finds its hosts by itself: leave out --ddl-hosts=a,b$"):
        launcher_over("boxes", make, {}, "a,b", start_timeout=60)({}, tmp_path, None)
    assert transport.closed == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["true"],
            r"^no connection to the host a: its Python did not answer: it exited with status 0; the command was `t",
        ),
        (["sh", "-c", "exit 3"], r"did not answer: it exited with status 3; the command was `sh -c 'exit 3'`$"),
        (["echo", "welcome"], r"printed 'welcome' on stdout before Python began, .*; the command was `echo welcome`$"),
        (["sh", "-c", "echo closed >&2"], "^no connection to the host a: closed$"),
    ],
)
def test_a_command_without_a_python_is_shown(command: list[str], message: str, tmp_path: Path) -> None:
    group = HostGroup(Given(command=command), tmp_path, "python3")
    try:
        with pytest.raises(LaunchError, match=message):
            _ = group.hosts
    finally:
        group.close()
