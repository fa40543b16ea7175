"""Arguments of users for transports, and the host of each process."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddl.hosts.placement import place
from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments, TransportError, this_python
from pytest_ddl.hosts.transports.netns import Netns
from pytest_ddl.hosts.transports.registry import built_in_transports, parse_launcher
from pytest_ddl.hosts.transports.slurm import Slurm, cpus_per_node
from pytest_ddl.hosts.transports.ssh import Ssh
from pytest_ddl.strategies.registry import StrategyRegistry, UnknownStrategyError


def given(name: str, ddl_hosts: str = "", **settings: str) -> TransportArguments:
    return TransportArguments(name, Path("unused"), {}, ddl_hosts, settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh", ("ssh", {})),
        ("netns[hosts=3,mbit=200]", ("netns", {"hosts": "3", "mbit": "200"})),
        (" a.b-c[ key = value ] ", ("a.b-c", {"key": "value"})),
        ("ssh[config=/a=b]", ("ssh", {"config": "/a=b"})),
        ("ssh[]", ("ssh", {})),
    ],
)
def test_launchers_are_parsed(text: str, expected: tuple[str, dict[str, str]]) -> None:
    assert parse_launcher(text) == expected


@pytest.mark.parametrize("text", ["", "ssh[", "ssh[a]", "ssh[=1]", "ssh[a=1]x", "a b"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form name or name\[key=value,…\]"):
        parse_launcher(text)


def test_hosts_have_slots() -> None:
    hosts = given("ssh", "a:2, user@b ,10.0.0.1:8").host_list()
    assert hosts == [Host("a", slots=2), Host("user@b"), Host("10.0.0.1", slots=8)]


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("", r"^ssh needs hosts: add --ddl-hosts=NAME,NAME$"),
        ("a:x", r"--ddl-hosts='a:x': 'a:x' is not of the form name or name:slots"),
        ("a,b,a:2", r"--ddl-hosts='a,b,a:2': the host 'a' appears twice"),
    ],
)
def test_wrong_hosts_are_refused(hosts: str, message: str) -> None:
    with pytest.raises(TransportArgumentError, match=message):
        Ssh(given("ssh", hosts))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"host": "2"},
            r"'host' is not a setting of netns \(did you mean 'hosts'\?\); settings: hosts=2, mbit=, delay=, tmp",
        ),
        ({"hosts": "0"}, "hosts='0' is not a number from 1 to 64"),
        ({"hosts": "two"}, "hosts='two' is not a number from 1 to 64"),
        ({"mbit": "0"}, "mbit='0' is not a positive number of megabits per second"),
        ({"delay": "2"}, "delay='2' is not a time such as 2ms or 500us"),
        ({"tmp": "mine"}, "tmp='mine' is not shared or own"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(TransportArgumentError, match=message):
        Netns(given("netns", **settings))


def test_the_program_is_quoted_for_the_shell_of_a_host() -> None:
    ssh = Ssh(given("ssh", "a:2", config="/c"))
    command = ssh.command(ssh.hosts()[0], ["/opt/my python", "-c", "print('x')"])
    assert command[:2] == ["ssh", "-T"]
    assert command[-2:] == ["a", "'/opt/my python' -c 'print('\"'\"'x'\"'\"')'"]
    assert command[command.index("-F") + 1] == "/c"


def test_slurm_needs_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TransportError, match=r"does not run in an allocation .*`salloc -N2 pytest …`"):
        Slurm(given("slurm")).hosts()


def test_slurm_must_not_start_pytest_on_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TransportError, match=r"more than once \(SLURM_STEP_NUM_TASKS=4\); start it without srun"):
        Slurm(given("slurm")).hosts()


def test_slurm_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TransportError, match="the program scontrol is not installed here"):
        Slurm(given("slurm")).hosts()


@pytest.mark.parametrize(("text", "expected"), [("", []), ("4", [4]), ("2(x3),4", [2, 2, 2, 4]), ("16(x2)", [16, 16])])
def test_cpus_of_nodes_are_parsed(text: str, expected: list[int]) -> None:
    assert cpus_per_node(text) == expected


def test_every_transport_describes_itself() -> None:
    for name, transport in built_in_transports().items():
        assert getattr(transport, "name", None) == name
        assert getattr(transport, "summary", "")


def test_the_python_of_the_hosts_is_this_one_by_default() -> None:
    assert this_python({}) == sys.executable
    assert this_python({"python": "/other"}) == "/other"


@pytest.mark.parametrize(
    ("variant", "slots", "expected"),
    [
        ("mirrored", [2, 2], [0]),
        ("multi_worker_mirrored", [2, 2], [0, 1]),
        ("multi_worker_mirrored", [8, 1], [0, 1]),
        ("multi_worker_mirrored[workers=4]", [2, 2], [0, 0, 1, 1]),
        ("multi_worker_mirrored[workers=4]", [6, 2], [0, 0, 0, 1]),
        ("multi_worker_mirrored[workers=3]", [1, 1, 1, 1], [0, 1, 2]),
        ("parameter_server", [2, 2], [0]),
        ("parameter_server[processes=separate,ps=2]", [2, 2], [0, 0, 1, 0, 1]),
        ("multi_worker_mirrored[workers=4,hosts=2]", [2, 2, 2], [0, 0, 1, 1]),
        ("multi_worker_mirrored[workers=4,hosts=2]", [6, 2], [0, 0, 1, 1]),
        ("multi_worker_mirrored[workers=5,hosts=2]", [1, 4, 4], [1, 1, 1, 2, 2]),
        ("multi_worker_mirrored[workers=2,hosts=1]", [1, 4], [1, 1]),
        ("parameter_server[processes=separate,workers=4,hosts=2]", [2, 2, 2], [0, 0, 0, 1, 1, 0]),
    ],
)
def test_processes_are_spread_over_the_hosts(variant: str, slots: list[int], expected: list[int]) -> None:
    registry = StrategyRegistry()
    spec = registry.parse_variant(variant)
    topology = replace(registry[spec.name].topology(spec), hosts=spec.hosts)
    assert place(topology, slots) == expected


def test_a_number_of_hosts_is_a_part_of_the_variant() -> None:
    registry = StrategyRegistry()
    spec = registry.parse_variant("multi_worker_mirrored[hosts=2,workers=4]")
    assert str(spec) == "multi_worker_mirrored[workers=4,replicas=1,hosts=2]"
    assert registry.parse_variant(str(spec)) == spec
    assert registry.default("multi_worker_mirrored").hosts == 0
    assert registry.parse_variant("mirrored[hosts=1]").hosts == 1


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("multi_worker_mirrored[workers=2,hosts=3]", r"hosts=3 is more than its 2 processes of one kind$"),
        ("mirrored[hosts=2]", r"hosts=2 is more than the one process in which it runs$"),
        ("parameter_server[hosts=2]", r"hosts=2 is more than the one process in which it runs$"),
        ("multi_worker_mirrored[hosts=0]", r"hosts must be at least 1, not 0$"),
        ("multi_worker_mirrored[hosts=a]", r"hosts='a' is not a whole number$"),
        (
            "multi_worker_mirrored[host=2]",
            r"'host=2' is not a setting of \w+ \(did you mean 'hosts'\?\); settings: workers=",
        ),
    ],
)
def test_a_number_of_hosts_that_cannot_be_is_refused(variant: str, message: str) -> None:
    with pytest.raises(UnknownStrategyError, match=message):
        StrategyRegistry().parse_variant(variant)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("mirrored", ()),
        ("multi_worker_mirrored", (0, 1)),
        ("parameter_server", (0, 0, 0)),
        ("parameter_server[processes=separate]", (1, 2, 3)),
    ],
)
def test_each_address_belongs_to_a_process(variant: str, expected: tuple[int, ...]) -> None:
    registry = StrategyRegistry()
    spec = registry.parse_variant(variant)
    assert registry[spec.name].topology(spec).listeners == expected


def test_a_missing_program_of_netns_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TransportError, match=r"netns: the program ip is not installed here; install iproute2$"):
        Netns(given("netns")).hosts()
