"""Measurements on whole pytest runs, each a process of its own: the cost of one more test, and of the plugin unused."""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

_CLOCK = """
import json, time
import pytest

_started = []

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid, location):
    _started.append(time.perf_counter())

def pytest_sessionfinish(session, exitstatus):
    if not _started:
        return  # of a rank, which has a session of its own for the fixtures of its tests
    _started.append(time.perf_counter())
    with open({out!r}, "w") as file:
        json.dump({{"status": int(exitstatus), "started": _started}}, file)
"""
_TEST = "def test_{number}({fixture}):\n    pass\n"
FIXTURES = {"plain": "", "mirrored": "mirrored_strategy", "multi_worker_mirrored": "multi_worker_mirrored_strategy"}


def per_test_seconds(kind: str, count: int) -> list[float]:
    """Run ``count`` empty tests and return what each cost from its start to the next one's.

    :param kind: ``plain`` for tests without a strategy, else the strategy that each of them asks for.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "clock.json"
        (folder / "conftest.py").write_text(_CLOCK.format(out=str(out)))
        tests = (_TEST.format(number=number, fixture=FIXTURES[kind]) for number in range(count))
        (folder / "test_empty.py").write_text("\n".join(tests))
        (folder / "pytest.ini").write_text("[pytest]\n")
        _pytest(folder)
        clock = json.loads(out.read_text())
    assert clock["status"] == 0, f"{kind}: pytest ended with status {clock['status']}"
    started = clock["started"]
    assert len(started) == count + 1
    return [later - earlier for earlier, later in itertools.pairwise(started)]


def steady(costs: list[float]) -> float:
    """The median of a run without its first tests, which import TensorFlow and start the cluster."""
    return statistics.median(costs[5:])


def unused_seconds(with_plugin: bool) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a pytest run of one plain test, with the plugin installed or blocked."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_one.py").write_text("def test_one():\n    pass\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        _pytest(folder, *([] if with_plugin else ["-p", "no:ddl"]))
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu


def _pytest(folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    # An installed package has its bytecode written once; compiling it anew in each run is not what is measured.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            textwrap.dedent(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        )
