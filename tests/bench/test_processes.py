"""Processes that a command starts end with it, with all that they have started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_ddl.bench.launching.processes import Processes

STUBBORN = ["sh", "-c", "trap '' TERM; setsid sleep 300 & sleep 300"]
"""Process with a session of its own that ignores the signal that ends its parent, as a zygote does."""


@pytest.mark.slow
def test_all_of_them_are_ended_with_those_in_other_sessions(tmp_path: Path) -> None:
    with Processes(f"test-bench-processes-{os.getpid()}") as processes:
        process = processes.start(STUBBORN, tmp_path, dict(os.environ), tmp_path / "log")
        while len(processes.pids()) < 3:
            assert process.poll() is None
    assert processes.pids() == []
    assert process.poll() is not None


def test_a_second_interruption_leaves_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(f"test-bench-processes-interrupted-{os.getpid()}")
    process = processes.start(STUBBORN, tmp_path, dict(os.environ), stdin=subprocess.PIPE)
    real, waits = process.wait, []

    def wait(timeout: float | None = None) -> int:
        waits.append(timeout)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return real(timeout)

    monkeypatch.setattr(process, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        processes.end()
    assert processes.pids() == []
    assert process.poll() is not None
