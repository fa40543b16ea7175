"""The kernel stops each change of a file in a save, so that a fault can strike at it: also writes of native code."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddl.faults.rank.point_log import path_of, read
from pytest_ddl.faults.rank.write_gate import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a gate")

WRITES = [
    ("openat", "new"),
    ("write", "new"),
    ("write", "new"),
    ("rename", "new", "old"),
    ("mkdir", "made"),
    ("unlink", "old"),
]


def save(folder: Path, *faults: str):
    run = folder / "run"
    run.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("gated.py")), str(run), *faults]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return run, done, [one for one in read(path_of(str(run), 1, 0)) if one.point.detail == "write"]


def test_each_change_of_a_file_of_the_run_is_a_point(tmp_path):
    run, done, writes = save(tmp_path)
    assert [one.change for one in writes] == WRITES
    assert [one.point.index for one in writes] == [1, 2, 3, 4, 5, 6]
    assert done.stdout == "ended\n"
    assert (run / "later").read_bytes() == b"after the save"


@pytest.mark.parametrize("number", range(1, 7))
def test_a_kill_strikes_before_the_change(tmp_path, number):
    run, done, writes = save(tmp_path, f"kill worker:0 in save 1, write {number}")
    assert done.returncode == -signal.SIGKILL
    assert [one.change for one in writes] == WRITES[:number]
    assert writes[-1].struck is not None
    size = {1: None, 2: 0, 3: 1000, 4: 1010}.get(number)
    assert (run / "new").stat().st_size == size if size is not None else not (run / "new").exists()
    assert (run / "old").exists() == (number > 4)
    assert (run / "made").exists() == (number > 5)


def test_a_torn_write_has_half_of_its_bytes(tmp_path):
    run, done, _writes = save(tmp_path, "torn-write worker:0 in save 1, write 2")
    assert done.returncode == -signal.SIGKILL
    assert (run / "new").read_bytes() == b"x" * 500


def test_an_error_fails_one_write(tmp_path):
    run, done, _writes = save(tmp_path, "io-error worker:0 in save 1, write 3")
    assert done.stdout == f"{errno.EIO}\nended\n"
    assert (run / "new").stat().st_size == 1000
    assert (run / "later").exists()


def test_a_full_disk_fails_all_later_writes_of_the_save(tmp_path):
    run, done, writes = save(tmp_path, "no-space worker:0 in save 1, write 2")
    assert done.stdout == f"{errno.ENOSPC}\nended\n"
    assert (run / "new").stat().st_size == 0
    assert len(writes) == 2


def test_the_listener_ends_with_its_process(tmp_path):
    _run, done, _writes = save(tmp_path, "kill worker:0 in save 1, write 2")
    assert done.returncode == -signal.SIGKILL
    # The pipes of the output reach their end only if no process holds them any more.
    assert done.stderr == ""
