"""A launcher explains that the system refuses descriptors, processes or ports, and leaves nothing open."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddl.cluster import local_launcher, resources, strays
from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.local_process import LocalProcess
from pytest_ddl.cluster.obstacles import LaunchError, cannot_start, temporary_folder
from pytest_ddl.cluster.resources import Ledger, PortLease
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.launchers import built_in_launchers
from tests.fire.registry import SCARCITIES
from tests.polling import wait_until


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave only so many descriptors to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(map(int, os.listdir("/proc/self/fd"))) + 1
    # The lowest free numbers are used first, so those below the limit are taken.
    taken = []
    while not taken or taken[-1] < top:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)


def worker() -> LocalProcess:
    return LocalProcess(lambda _pid, _number: None, lambda _timeout: None)


@pytest.mark.parametrize("count", range(6))
def test_a_worker_without_descriptors_says_so_and_leaves_none_open(count: int) -> None:
    tempfile.gettempdir()
    before = descriptors()
    with free_descriptors(count), pytest.raises(LaunchError, match=r"Too many open files.*ulimit -n 4096"):
        worker()
    assert descriptors() == before


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_lease_without_descriptors_does_not_blame_the_ports(count: int) -> None:
    before = descriptors()
    with free_descriptors(count), pytest.raises(LaunchError, match=r"Too many open files.*ulimit -n 4096"):
        PortLease(2)
    assert descriptors() == before


def test_slots_without_descriptors_say_so(tmp_path: Path) -> None:
    before = descriptors()
    with free_descriptors(1), pytest.raises(LaunchError, match=r"Too many open files.*ulimit -n 4096"):
        Ledger(tmp_path, {"cpu": 4}).acquire("cpu", 2, time.monotonic())
    assert descriptors() == before


def test_a_launcher_without_descriptors_says_so(tmp_path: Path) -> None:
    before = descriptors()
    with free_descriptors(2), pytest.raises(LaunchError, match=r"Too many open files.*ulimit -n 4096"):
        LocalLauncher(os.environ, tmp_path)
    assert descriptors() == before


def test_no_free_ports_say_how_to_find_their_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "FIRST_PORT", 17_400)
    monkeypatch.setattr(resources, "LAST_PORT", 17_402)
    held = PortLease(1)
    with pytest.raises(LaunchError, match=r"no 2 free ports between 17400 and 17402 .*`ss -lntup`"):
        PortLease(2)
    held.release()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "free memory"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EPERM, "Operation"),
    ],
)
def test_a_refusal_has_its_fix(number: int, words: str) -> None:
    text = cannot_start(OSError(number, os.strerror(number)))
    assert os.strerror(number) in text
    assert words in text
    assert "\n" not in text


def test_a_machine_without_any_folder_to_write_to_has_a_name_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    monkeypatch.setenv("TMPDIR", "/full")
    assert temporary_folder() == "/full"


# ----- a zygote -----

ZYGOTE = """
import errno, os, sys
from pytest_ddl.cluster import zygote
real, count = os.fork, iter(range(100))
def fork():
    if next(count) in map(int, os.environ["REFUSED"].split()):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return real()
zygote.fork = fork
zygote.main()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalLauncher]]:
    """Start a launcher whose zygote imports nothing, and refuses some forks."""
    launchers = []

    def make(refused: str = "") -> LocalLauncher:
        monkeypatch.setattr(local_launcher, "PRELOAD", ())
        monkeypatch.setattr(local_launcher, "_BOOTSTRAP", "{places!r:.0}" + ZYGOTE)
        launchers.append(LocalLauncher({**os.environ, "REFUSED": refused}, tmp_path / "session"))
        return launchers[-1]

    yield make
    for launcher in launchers:
        launcher.close()


def test_a_refused_fork_fails_only_its_own_request(start: Callable[..., LocalLauncher]) -> None:
    launcher = start(refused="1")
    before = launcher.launch(PortLease(0), [0], os.environ)
    first = psutil.Process(before[0].pid)
    count = descriptors()
    with pytest.raises(LaunchError, match=f"Resource temporarily unavailable.*{re.escape(SCARCITIES['forks'].says)}"):
        launcher.launch(PortLease(0), [0, 1], os.environ)
    assert descriptors() == count
    assert first.is_running()
    again = launcher.launch(PortLease(0), [0], os.environ)
    assert again[0].wait() is None
    assert launcher.ended == ""
    for process in (*before, *again):
        process.close()


def suspend(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: strays.is_suspended(pid))


def test_a_suspended_zygote_is_replaced(start: Callable[..., LocalLauncher]) -> None:
    launcher = start()
    launcher.launch(PortLease(0), [0], os.environ)[0].close()
    assert launcher._process is not None
    suspend(launcher._process.pid)
    launcher.start_timeout = 0.5
    count = descriptors()
    with pytest.raises(LaunchError, match=r"forking workers took more than 0.5 s; the zygote is suspended \(SIGSTOP\)"):
        launcher.launch(PortLease(0), [0], os.environ)
    assert launcher.ended
    assert descriptors() == count
    assert launcher._process.wait(10) == -signal.SIGKILL


def test_a_slow_import_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_launcher, "_BOOTSTRAP", "{places!r:.0}import threading; threading.Event().wait()")
    settings = resolve_without_pytest({"PYTEST_DDL_START_TIMEOUT": "0.25"})
    launcher = built_in_launchers(settings)["local"](dict(os.environ), tmp_path / "session", None)
    with contextlib.closing(launcher):
        late = r"importing TensorFlow took more than 0\.25 s; .*--ddl-start-timeout or PYTEST_DDL_START_TIMEOUT"
        with pytest.raises(LaunchError, match=late):
            launcher.launch(PortLease(0), [0], os.environ)


def test_a_suspended_zygote_does_not_delay_the_end(start: Callable[..., LocalLauncher]) -> None:
    launcher = start()
    launcher.launch(PortLease(0), [0], os.environ)[0].close()
    assert launcher._process is not None
    suspend(launcher._process.pid)
    started = time.monotonic()
    launcher.close()
    assert time.monotonic() - started < 5


def test_a_limit_of_processes_is_named(tmp_path: Path) -> None:
    """The limit does not hold for root, so the zygote is asked to fork as another user."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become a user without processes")
    code = """
import os, resource
from pytest_ddl.cluster.obstacles import cannot_start
os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    os.fork() or os._exit(0)
    os.fork() or os._exit(0)
except OSError as error:
    print(cannot_start(error))
"""
    result: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ulimit -u" in result.stdout, result.stderr
