"""Run tests on a machine that lacks something: one line says what is missing and what to do, and nothing is left."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster.resources import PortLease
from tests.fire.leftovers import leftovers, shared_memory
from tests.fire.registry import SCARCITIES

pytestmark = pytest.mark.slow

DEADLINE = 150.0
"""Seconds in which a run must end, on a busy machine."""
PROJECT = {
    "conftest.py": """
        import os, tempfile
        from pytest_ddl.cluster import resources

        if "PORTS" in os.environ:
            resources.FIRST_PORT, resources.LAST_PORT = map(int, os.environ["PORTS"].split())
        # Python has chosen its folder for temporary files before the disk is full.
        tempfile.tempdir = os.environ["TMPDIR"]
    """,
    "test_scarce.py": """
        import pytest

        pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=60)

        def test_ranks(ddl_strategy):
            print("said by a rank")
            assert ddl_strategy.num_replicas_in_sync == 2

        def test_cluster(ddl_cluster):
            assert ddl_cluster.run(int) == [0, 0]
    """,
}


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT)


def run(project: Any, folder: Path, shell: str, *wrapper: str, **environ: str) -> Any:
    """Run the project's tests in a shell that first takes something away. Check that nothing is left.

    :param wrapper: command that runs the shell, for example in a namespace.
    """
    before, report = shared_memory(), folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    command += [f"--basetemp={folder / 'base'}"]
    words = [*wrapper, "sh", "-c", f"{shell}; exec {shlex.join(command)}"]
    process = project.start("-c", f"import os; os.execvp({words[0]!r}, {words!r})", python=True, env=environ)
    outcome = project.finish(process, DEADLINE, report)
    said = outcome.stdout + outcome.stderr
    assert not leftovers(outcome, folder / "ports", before), said
    assert "INTERNALERROR" not in said, said
    return outcome


def permits(*command: str) -> None:
    """Skip the test if this machine does not permit a namespace."""
    try:
        result = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"the command {command[0]} is not installed")
    if result.returncode:
        pytest.skip(f"this machine does not permit `{' '.join(command)}`: {result.stderr.strip()}")


def refused(outcome: Any, words: str) -> None:
    """Check that both tests failed with a line that has these words."""
    said = outcome.stdout + outcome.stderr
    assert outcome.status == pytest.ExitCode.TESTS_FAILED, said
    assert sorted(case.outcome for case in outcome.cases.values()) == ["error", "error"], said
    for case in outcome.cases.values():
        assert words in case.text, case.text
        assert "Traceback" not in case.text
        assert "another exception" not in case.text


def test_no_loopback(project: Any, tmp_path: Path) -> None:
    permits("unshare", "-Urn")
    refused(run(project, tmp_path, ":", "unshare", "-Urn"), SCARCITIES["loopback"].says)


def test_no_free_ports(project: Any, tmp_path: Path) -> None:
    held = PortLease(2)
    first = min(held.ports)
    outcome = run(project, tmp_path, ":", PORTS=f"{first} {first + 1}")
    held.release()
    refused(outcome, f"no 2 free ports between {first} and {first + 1} on this machine; {SCARCITIES['ports'].says}")


# Each is a run of pytest in which a process is struck in one phase. Each commit runs one for each process.
@pytest.mark.nightly
@pytest.mark.parametrize("number", [16, 24, 32])
def test_few_descriptors(project: Any, tmp_path: Path, number: int) -> None:
    outcome = run(project, tmp_path, f"ulimit -n {number}")
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    assert len(outcome.cases) == 2
    for case in outcome.cases.values():
        # Ranks need fewer descriptors than the pytest process, so one test may pass.
        assert case.outcome == "passed" or SCARCITIES["descriptors"].says in case.text, case.text
        assert "Traceback" not in case.text


@pytest.mark.parametrize("option", ["size=64k", "nr_inodes=6"])
def test_full_disk(project: Any, tmp_path: Path, option: str) -> None:
    permits("unshare", "-Urm")
    disk = tmp_path / "disk"
    disk.mkdir()
    fill = "" if "size" not in option else f"; dd if=/dev/zero of={disk}/full bs=1k 2>/dev/null"
    mount = f"mount -t tmpfs -o {option} tmpfs {disk}{fill}"
    outcome = run(project, tmp_path, mount, "unshare", "-Urm", TMPDIR=str(disk))
    refused(outcome, f"No space left on device; {SCARCITIES['disk'].says}")


CROWD = """
import os, sys, time
from pathlib import Path
from pytest_ddl.cluster import ship
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness, XX
from pytest_ddl.launchers import built_in_launchers
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.strategies.registry import StrategyRegistry

def harness(folder=None, address=None):
    settings = resolve_without_pytest()
    launchers = built_in_launchers(settings, shared=folder is not None)
    return Harness(settings, StrategyRegistry(), launchers, folder=folder, address=address)

def ask(harness, number):
    # All want their cluster at the same time, and a third wants all slots of two cores.
    name = "multi_worker_mirrored[workers=4]" if number % 3 == 0 else "multi_worker_mirrored"
    with harness.cluster(harness.registry.parse_variant(name), DdlMark(), fresh=True) as cluster:
        answers = cluster.ask(RequestKind.CALL, ship.pack(abs, (-number,)), deadline=time.monotonic() + 60)
        assert all(ship.unpack(answer.body) == number for answer in answers)

first = harness()
first.pool.launcher
children = []
for number in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        try:
            one = harness(first.folder, first.address)
            ask(one, number)
            one.close()
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    children.append(pid)
print("ended:", *sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
first.close()
"""


@pytest.mark.nightly
def test_64_clusters_at_once(new_project: Callable[..., Any]) -> None:
    """More clusters than cores, asked for by as many processes: each gets its slots in turn."""
    project = new_project({"crowd.py": CROWD})
    before = shared_memory()
    process = project.start("crowd.py", "64", python=True)
    outcome = project.finish(process, 600)
    assert f"ended: {' '.join(['0'] * 64)}" in outcome.stdout, outcome.stderr
    assert outcome.status == 0
    assert not leftovers(outcome, project.folder / "ports", before)
