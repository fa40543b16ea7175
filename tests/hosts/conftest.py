"""Emulated hosts for the tests of launchers over several hosts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import pytest_ddl
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.harness import process_harness
from pytest_ddl.hosts.remote import RemoteLauncher
from pytest_ddl.hosts.transport import Host, Transport, TransportArguments, TransportError
from pytest_ddl.hosts.transports.netns import Netns
from tests.plugin.conftest import new_project

__all__ = ["new_project"]


class Emulated:
    """Emulated hosts whose command a test may change. ``wrap`` takes the host and the command, and returns another."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.network = Netns(TransportArguments("netns", folder, {}, given=settings))
        self.wrap: Callable[[Host, Sequence[str]], Sequence[str]] = lambda _host, command: command
        self.addresses: Mapping[str, str] = {}

    def hosts(self) -> list[Host]:
        found = self.network.hosts()
        return [Host(host.name, self.addresses.get(host.name, host.address), slots=2) for host in found]

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        own = next(one for one in self.network.hosts() if one.name == host.name)
        return self.wrap(host, self.network.command(own, program))

    def close(self) -> None:
        self.network.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skip fail if the caller has promised that everything is installed, as the workflow of the night does."""
    report = yield
    if os.environ.get("CI_ENGINES") == "required" and report.skipped:
        report.outcome = "failed"
    return report


def skip_below_tmp() -> None:
    """Skip a test whose hosts have a /tmp of their own, if pytest-ddl or its Python lies in the one of this machine."""
    for path in (pytest_ddl.__file__, sys.prefix):
        if Path(path).resolve().is_relative_to("/tmp"):
            pytest.skip(f"{path} is in /tmp, and the hosts of this test have another /tmp")


@contextlib.contextmanager
def emulated_hosts(folder: Path, **settings: str) -> Iterator[Emulated]:
    """Yield two emulated hosts. Skip the test if the kernel permits none."""
    if settings.get("tmp") == "own":
        skip_below_tmp()
    made = Emulated(folder, **settings)
    with contextlib.closing(made):
        try:
            made.hosts()
        except TransportError as error:
            pytest.skip(str(error))
        yield made


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[Emulated]:
    with emulated_hosts(tmp_path) as made:
        yield made


@pytest.fixture
def over(tmp_path: Path) -> Iterator[Callable[..., RemoteLauncher]]:
    """Return a function that starts a launcher over a transport. It is closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(transport: Transport, python: str = sys.executable, *, warm: bool = False) -> RemoteLauncher:
            return stack.enter_context(contextlib.closing(launcher_over(transport, tmp_path, python, warm=warm)))

        yield start


def launcher_over(
    transport: Transport, folder: Path, python: str = sys.executable, *, warm: bool = False
) -> RemoteLauncher:
    return RemoteLauncher(transport, process_harness().worker_environ(), folder, python, warm=warm)


def problem_of(launcher: RemoteLauncher) -> str:
    """Return why the hosts of a launcher cannot be used."""
    with pytest.raises(LaunchError) as raised:
        _ = launcher.group.hosts
    return str(raised.value)
