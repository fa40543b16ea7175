"""Kill or suspend each process of a run in each phase: it ends in time, with the right status, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fire.leftovers import leftovers, shared_memory
from tests.fire.registry import CASES, PHASES, Fire
from tests.fire.struck import PROJECT
from tests.polling import wait_until

pytestmark = pytest.mark.slow

DEADLINE = 240.0
"""Seconds in which a struck run must end, on a busy machine."""
LIMIT, PATIENCE = 25.0, 120.0
"""Seconds in which a process must have started. The second is the limit outside of these tests."""
TIMEOUT = 10.0
"""Time limit of each test of a struck run."""


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT)


# Each is a run of pytest in which a process is struck in one phase. Each commit runs one for each process.
@pytest.mark.nightly(each_commit=("zygote-SIGKILL-body", "rank-SIGKILL-between_two_tests"))
@pytest.mark.parametrize(
    ("fire", "phase"), CASES, ids=[f"{fire.target}-{fire.signal}-{phase}".replace(" ", "_") for fire, phase in CASES]
)
def test_fire(project: Any, tmp_path: Path, fire: Fire, phase: str) -> None:
    before, report = shared_memory(), tmp_path / "report.xml"
    environ = {"FIRE": f"{fire.target},{fire.signal},{phase}", "FIRE_FOLDER": str(tmp_path)}
    first = 32_000 + 90 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8)
    environ["FIRE_PORTS"] = f"{first},{first + 90}"
    environ["FIRE_LIMITS"] = f"{_limit(fire, phase, 'rank', PHASES[1])},{_limit(fire, phase, 'zygote', PHASES[0])}"
    arguments = ["-p", "no:cacheprovider", f"--junitxml={report}", f"--ddl-timeout={TIMEOUT}"]
    arguments += ["-n", "1"] if fire.target.startswith("xdist") else []
    process = project.start(*arguments, env=environ)
    try:
        if fire.signal == "SIGSTOP" and fire.target not in ("zygote", "rank"):
            _resume(_struck(project, process, fire, tmp_path))
        outcome = project.finish(process, DEADLINE, report)
    finally:
        for left in project.running():
            left.kill()
    said = f"{outcome.stdout}\n{outcome.stderr}"
    assert (tmp_path / "struck").exists(), f"the point was never reached\n{said}"
    assert not leftovers(outcome, tmp_path / "ports", before), said
    assert "INTERNALERROR" not in said
    outcomes = {name.partition("[")[0]: case.outcome for name, case in outcome.cases.items()}
    assert (outcome.status, outcomes) == (fire.status, fire.outcomes(phase)), said
    assert fire.says in said


def _limit(fire: Fire, phase: str, target: str, struck: str) -> float:
    """Return the seconds in which a process must have started, which are few only if it is suspended then."""
    return LIMIT if (fire.target, fire.signal, phase) == (target, "SIGSTOP", struck) else PATIENCE


def _struck(project: Any, process: subprocess.Popen[str], fire: Fire, folder: Path) -> psutil.Process:
    """Wait until the signal has suspended a pytest process, and return the process."""
    wait_until(lambda: (folder / "struck").exists() or process.poll() is not None, "the point was never reached")

    def suspended() -> list[psutil.Process]:
        assert process.poll() is None, process.communicate()
        return [one for one in project.running() if one.status() == psutil.STATUS_STOPPED]

    return wait_until(suspended, "no process is suspended")[0]


def _resume(process: psutil.Process) -> None:
    process.send_signal(signal.SIGCONT)
