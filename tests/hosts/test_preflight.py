"""Obstacles between hosts are reported with their fixes before the first cluster, instead of a hang."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.resources import PortLease
from pytest_ddl.hosts import preflight, questions
from pytest_ddl.hosts.remote import RemoteLauncher
from pytest_ddl.hosts.transport import Transport, TransportError
from tests.hosts.conftest import Emulated, emulated_hosts, problem_of

Over = Callable[..., RemoteLauncher]


@pytest.fixture
def over(over: Over, warm_server: object) -> Over:
    """Return a function that starts a launcher. These tests need no rank, so that no host imports TensorFlow."""
    return partial(over, warm=True)


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return questions.facts(os.getcwd())


def test_equal_hosts_have_no_differences(here: dict[str, Any]) -> None:
    assert preflight.differences(here, questions.facts(os.getcwd())) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"python": "3.9.1"},
            r"^Python 3\.9\.1 \(.*\), but 3\.\S+ runs pytest; choose one with --ddl-launcher=…\[python",
        ),
        (
            {"tensorflow": "2.16.0"},
            r"^tensorflow 2\.16\.0, but \S+ here; run `.* -m pip install tensorflow==\S+` there",
        ),
        ({"keras": ""}, "^keras is missing, but .* here; run `.* -m pip install keras=="),
        ({"numpy": "1.0"}, "^numpy 1.0, but "),
        ({"pytest-ddl": "0.0.1"}, "^pytest-ddl 0.0.1, but "),
        ({"source": "0"}, "^pytest-ddl has the same version but other files than here; install the same commit there"),
        (
            {"has_directory": False},
            "^the folder .* of the tests does not exist there; add --ddl-sync, .*, copy it, or run from a folder that",
        ),
    ],
)
def test_a_difference_is_named_with_its_fix(here: dict[str, Any], change: dict[str, Any], message: str) -> None:
    there = copy.deepcopy(here)
    for name, value in change.items():
        (there["packages"] if name in there["packages"] else there)[name] = value
    (found,) = preflight.differences(here, there)
    assert re.search(message, "; ".join(found)), found


def test_other_micro_versions_of_python_work_together(here: dict[str, Any]) -> None:
    major, minor, micro = here["python"].split(".")
    assert preflight.differences(here, {**here, "python": f"{major}.{minor}.{int(micro) + 1}"}) == []


def test_a_package_that_is_here_too_little_is_named(here: dict[str, Any]) -> None:
    lacking = {**here, "packages": {**here["packages"], "tf_keras": ""}}
    ((found, fix),) = preflight.differences(lacking, {**here, "packages": {**here["packages"], "tf_keras": "2.0"}})
    assert found == "tf_keras 2.0, but none here"
    assert fix == f"run `{sys.executable} -m pip uninstall tf_keras` there"


def test_connections_that_fail_are_explained() -> None:
    lease = PortLease(2)
    used, unused = lease.ports
    questions.listen(used)
    answers = questions.connect([("127.0.0.1", used), ("127.0.0.1", unused), ("no-such-host.invalid", 1)])
    questions.hush()
    lease.release()
    assert answers[:2] == ["", f"connecting to 127.0.0.1 port {unused} failed (Connection refused)"]
    assert answers[2].startswith("its name 'no-such-host.invalid' is not known there")


def test_addresses_of_ipv6_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", 18000, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_names: entry)
    said = "node7 has only addresses of IPv6 there (fd00::7), which are not supported between hosts"
    assert questions.connect([("node7", 18000)]) == [said]


@pytest.mark.parametrize(
    ("given", "address", "address6", "problem"),
    [
        ("", "10.0.0.7", "", ""),
        ("node7", "node7", "fd00::7", ""),
        ("fd00::7", "fd00::7", "fd00::7", "its address fd00::7 is one of IPv6, which is not supported between hosts"),
        ("127.0.1.1", "127.0.1.1", "", "its address is 127.0.1.1, which means the host itself on every host"),
        (
            "",
            "127.0.0.1",
            "fd00::7",
            "it has no IPv4 route, and its IPv6 address fd00::7 is not supported between hosts",
        ),
        ("", "127.0.0.1", "", "it has no default route, so its address is not known"),
    ],
)
def test_an_address_that_others_cannot_use_is_named(given: str, address: str, address6: str, problem: str) -> None:
    assert preflight._wrong_address(given, address, address6) == problem


@pytest.mark.slow
def test_emulated_hosts_reach_each_other(emulated: Emulated, over: Over) -> None:
    assert [host.address for host in over(emulated).group.hosts] == ["198.18.77.1", "198.18.77.2"]


@pytest.mark.slow
def test_a_missing_program_is_named(emulated: Emulated, over: Over) -> None:
    emulated.wrap = lambda host, command: ["no-such-program"] if host.name == "host1" else command
    said = "no connection to the host host1: no-such-program: No such file or directory"
    assert problem_of(over(emulated)) == said


@pytest.mark.slow
def test_a_missing_python_is_named(emulated: Emulated, over: Over) -> None:
    problem = problem_of(over(emulated, "/no/such/python"))
    assert problem.startswith("no connection to the host host0: nsenter: ")
    assert "/no/such/python: No such file or directory" in problem


@pytest.mark.slow
def test_a_program_that_prints_something_first_is_quoted(emulated: Emulated, over: Over) -> None:
    emulated.wrap = lambda _host, _command: ["sh", "-c", "echo the door is closed >&2; exit 255"]
    assert problem_of(over(emulated)) == "no connection to the host host0: the door is closed"


@pytest.mark.slow
def test_a_login_shell_that_prints_on_stdout_is_quoted(emulated: Emulated, over: Over) -> None:
    # More than a pipe holds, before the shell reads anything.
    greets = "yes 'Welcome to this cluster!' | head -c 3000000; exec \"$@\""
    emulated.wrap = lambda _host, command: ["sh", "-c", greets, "sh", *command]
    problem = problem_of(over(emulated))
    assert problem.startswith(
        "no connection to the host host0: its command has printed 'Welcome to this cluster!' on stdout before Python "
        "began, and that must carry nothing else; "
    )
    assert "; the command was `sh -c " in problem


@pytest.mark.slow
def test_a_python_without_the_package_is_named(emulated: Emulated, over: Over, tmp_path: Path) -> None:
    # The agent adds the controller's folders to its path. This Python finds another package of the name first.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pytest_ddl'] = None\n")
    emulated.wrap = lambda _host, command: ["env", f"PYTHONPATH={tmp_path}", *command]
    problem = problem_of(over(emulated))
    assert problem.startswith(f"on the host host0, {sys.executable} cannot import pytest_ddl (")
    assert problem.endswith("): install pytest-ddl there")


@pytest.mark.slow
def test_another_python_is_named(emulated: Emulated, over: Over, tmp_path: Path) -> None:
    fake = "import platform\nplatform.python_version = lambda: '3.8.0'\n"
    (tmp_path / "sitecustomize.py").write_text(fake)
    emulated.wrap = lambda host, command: (
        ["env", f"PYTHONPATH={tmp_path}", *command] if host.name == "host1" else command
    )
    problem = problem_of(over(emulated))
    assert problem.startswith("the hosts cannot work together:\n  host1: Python 3.8.0 (")
    assert "host0" not in problem


@pytest.mark.slow
def test_the_address_of_the_loopback_device_is_refused(emulated: Emulated, over: Over) -> None:
    emulated.addresses = {"host1": "127.0.1.1"}
    problem = problem_of(over(emulated))
    assert "host1: its address is 127.0.1.1, which means the host itself on every host; the transport" in problem


@pytest.mark.slow
def test_a_name_that_is_not_known_is_named(emulated: Emulated, over: Over) -> None:
    emulated.addresses = {"host1": "host1.invalid"}
    problem = problem_of(over(emulated))
    assert (
        "host1: it does not reach itself at its address host1.invalid: its name 'host1.invalid' is not known" in problem
    )
    assert "host0:" not in problem


@pytest.mark.slow
def test_hosts_without_a_way_to_each_other_are_named(emulated: Emulated, over: Over) -> None:
    host1 = emulated.network.hosts()[1]
    cut = emulated.network.command(host1, ["ip", "route", "add", "unreachable", "198.18.77.1/32"])
    subprocess.run(cut, check=True)
    problem = problem_of(over(emulated))
    assert "host1: it cannot reach host0: connecting to 198.18.77.1 port " in problem
    assert "allow ports 18000 to 32000 between the hosts, or give another address" in problem


@pytest.mark.slow
def test_the_problem_is_said_again_at_the_next_test_and_not_asked_again(
    emulated: Emulated, over: Over, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    examine = preflight.examine
    monkeypatch.setattr(preflight, "examine", lambda *args, **options: asked.append(1) or examine(*args, **options))
    emulated.addresses = {"host1": "host1.invalid"}
    launcher = over(emulated)
    assert problem_of(launcher) == problem_of(launcher)
    assert len(asked) == 1


@pytest.mark.slow
def test_a_transport_without_hosts_is_closed(tmp_path: Path, over: Over) -> None:
    closed = []

    class Empty:
        def hosts(self) -> list[Any]:
            raise TransportError("there are no hosts; make some")

        def command(self, _host: Any, _program: Any) -> list[str]:
            raise AssertionError

        def close(self) -> None:
            closed.append(True)

    transport: Transport = Empty()
    with pytest.raises(LaunchError, match=r"^there are no hosts; make some$"):
        over(transport)
    assert closed


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_named(tmp_path: Path, over: Over, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # The own folder of this test is in /tmp, which the hosts do not see.
    with emulated_hosts(tmp_path, tmp="own") as emulated, tempfile.TemporaryDirectory(dir="/var/tmp") as seen:
        launcher = over(emulated)
        assert launcher.hosts_without(tmp_path) == ["host0", "host1"]
        assert launcher.hosts_without(Path(seen)) == []
        assert list(tmp_path.glob("seen*")) == []


@pytest.mark.slow
def test_a_shared_folder_that_is_gone_here_is_named(tmp_path: Path, emulated: Emulated, over: Over) -> None:
    gone = tmp_path / "gone"
    said = f"^pytest-ddl cannot write to {gone}: No such file or directory; it was removed or unmounted,"
    with pytest.raises(LaunchError, match=said):
        over(emulated).hosts_without(gone)


@pytest.mark.slow
def test_a_shared_folder_is_seen(tmp_path: Path, emulated: Emulated, over: Over) -> None:
    assert over(emulated).hosts_without(tmp_path) == []


@pytest.mark.slow
def test_a_folder_of_tests_that_a_host_lacks_is_named(
    tmp_path: Path, over: Over, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with emulated_hosts(tmp_path, tmp="own") as emulated:
        problem = problem_of(over(emulated))
    assert (
        f"host0: the folder {tmp_path} of the tests does not exist there; add --ddl-sync, which copies the files of"
        in problem
    )


@pytest.mark.slow
def test_a_module_with_another_content_is_named(tmp_path: Path, over: Over, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "a_module_of_the_user.py"
    module.write_text("answer = 1\n")
    with emulated_hosts(tmp_path, tmp="own") as emulated, contextlib.closing(over(emulated)) as launcher:
        launcher.group.compare_files()
        importlib.import_module(module.stem)
        # The hosts have a /tmp of their own, and so no such file; then they have another one.
        for text in ("", "answer = 2\n"):
            for host in emulated.hosts() if text else []:
                command = f"mkdir -p {tmp_path} && printf '{text}' > {module}"
                subprocess.run(emulated.command(host, ["sh", "-c", command]), check=True)
            with pytest.raises(LaunchError, match=rf"host0: {module} is not as here, or missing; add --ddl-sync,"):
                launcher.group.compare_files()
        for host in emulated.hosts():
            subprocess.run(emulated.command(host, ["sh", "-c", f"echo 'answer = 1' > {module}"]), check=True)
        launcher.group.compare_files()


@pytest.mark.slow
def test_the_files_of_these_tests_are_compared(emulated: Emulated, over: Over) -> None:
    launcher = over(emulated)
    launcher.group.compare_files()
    assert __file__ in launcher.group._compared


@pytest.mark.slow
def test_an_address_of_another_host_is_named(emulated: Emulated, over: Over) -> None:
    emulated.addresses = {"host0": "198.18.77.2", "host1": "198.18.77.1"}
    problem = problem_of(over(emulated))
    assert "host0: it does not reach itself at its address 198.18.77.2: connecting to 198.18.77.2 port " in problem
    assert "the transport must give the address of this host, and run its programs there" in problem


@pytest.mark.slow
def test_a_question_that_a_host_does_not_know_is_answered(emulated: Emulated, over: Over) -> None:
    group = over(emulated).group
    with pytest.raises(LaunchError, match=r"^on the host host0: AttributeError: .*no attribute 'unknown'"):
        group.ask("pytest_ddl.hosts.questions:unknown", [], "asking")
