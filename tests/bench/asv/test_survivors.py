"""No worker outlives a measurement that asv cut off at its timeout: it would keep a GPU and a port."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_HANGS = """
import os
from pathlib import Path
from pytest_ddl.bench import measure

PIDS = Path({pids!r})

def train(run):
    import signal
    with PIDS.open("a") as file:
        file.write(f"{{os.getpid()}} {{os.getppid()}}\\n")
    while True:
        signal.pause()

if __name__ == "__main__":
    measure(train, ["multi_worker_mirrored"], timeout=120, device="cpu")
"""
PATIENCE = 60.0
pytestmark = pytest.mark.slow


def started(tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that measures a program that hangs, and descriptors of its two workers and of what forked them."""
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    lines = os.open(pids, os.O_RDONLY | os.O_NONBLOCK)
    program = tmp_path / "hangs.py"
    program.write_text(_HANGS.format(pids=str(pids)))
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0
    )
    watched, over = select.poll(), os.pidfd_open(process.pid)
    watched.register(lines, select.POLLIN)
    watched.register(over, select.POLLIN)
    told = b""
    while len(set(told.split())) < 3:
        ready = {descriptor for descriptor, events in watched.poll() if events & select.POLLIN}
        assert over not in ready, process.communicate()[1]
        if lines in ready:
            told += os.read(lines, 1000)
    return process, [os.pidfd_open(int(pid)) for pid in set(told.split())]


def ended(descriptors: list[int]) -> bool:
    """Wait for these processes, and return whether all of them end."""
    left = set(descriptors)
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while left:
        ready = {descriptor for descriptor, _ in poll.poll(PATIENCE * 1000)}
        if not ready:
            return False
        for descriptor in ready:
            poll.unregister(descriptor)
        left -= ready
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_no_worker_survives_asv_killing_its_process_group(number: signal.Signals, tmp_path: Path) -> None:
    process, descriptors = started(tmp_path)
    # As asv/util.py does at its timeout; the zygote is in a session, and so in a group, of its own.
    os.killpg(process.pid, number)
    assert ended(descriptors)
    process.communicate(timeout=PATIENCE)
