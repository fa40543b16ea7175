"""asv ends with the command that runs it, however that ends, and nothing that asv started is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddl.bench.asv.running import call

_ASV = """
import os, signal, subprocess, sys

def main():
    # As asv starts benchmarks: in a group of their own, which it ends when it is interrupted.
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
    try:
        with open({fifo!r}, "w") as told:
            told.write(f"{{os.getpid()}} {{child.pid}}\\n")
        child.wait()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
"""
_COMMAND = """
import os, sys
from pathlib import Path
from pytest_ddl.bench.asv.running import call
from pytest_ddl.bench.outcome import interruptible

with interruptible():
    call(["run"], Path(sys.argv[1]), os.environ)
"""
PATIENCE = 60.0


def ends(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(PATIENCE * 1000))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_nothing_is_left_of_a_command_that_was_ended(number: signal.Signals, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "asv").mkdir()
    (tmp_path / "asv" / "__init__.py").write_text("")
    (tmp_path / "asv" / "main.py").write_text(_ASV.format(fifo=str(fifo)))
    command = subprocess.Popen([sys.executable, "-c", _COMMAND, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    with fifo.open() as told:
        processes = [os.pidfd_open(int(pid)) for pid in told.read().split()]
    assert len(processes) == 2
    command.send_signal(number)
    assert [ends(process) for process in processes] == [True, True]
    _, errors = command.communicate(timeout=PATIENCE)
    # Of this process, which has nobody to catch it here, and not of asv.
    assert errors.count("Traceback") == (number == signal.SIGTERM)


def test_the_status_and_the_arguments_are_those_of_asv(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"], tmp_path, os.environ) == 0
    assert "usage: asv" in capfd.readouterr().out
    assert call(["no-such-command"], tmp_path, os.environ) == 2
