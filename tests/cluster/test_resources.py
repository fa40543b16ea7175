"""The ledger of slots that xdist workers share."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster.resources import Ledger, ResourcesBusyError

NOW = 0.0
"""A deadline that has passed: do not wait."""
HOLDER = """
import sys, time
from pathlib import Path
from pytest_ddl.cluster.resources import Ledger
ledger = Ledger(Path(sys.argv[1]), {"gpu": 4})
print(*ledger.acquire("gpu", int(sys.argv[2]), time.monotonic() + 60).numbers, flush=True)
sys.stdin.read()
"""


def hold(folder: Path, count: int) -> Any:
    command = [sys.executable, "-c", HOLDER, str(folder), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_never_hold_one_slot(tmp_path: Path) -> None:
    holders = [hold(tmp_path, 2) for _ in range(2)]
    numbers = Counter(number for holder in holders for number in holder.stdout.readline().split())
    assert numbers == {"0": 1, "1": 1, "2": 1, "3": 1}
    with pytest.raises(ResourcesBusyError, match="1 gpu slots did not become free"):
        Ledger(tmp_path, {"gpu": 4}).acquire("gpu", 1, NOW)
    for holder in holders:
        holder.communicate(timeout=30)
    assert len(Ledger(tmp_path, {"gpu": 4}).acquire("gpu", 4, NOW).numbers) == 4


def test_slots_of_a_killed_process_are_free(tmp_path: Path) -> None:
    holder = hold(tmp_path, 4)
    holder.stdout.readline()
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=30)
    slots = Ledger(tmp_path, {"gpu": 4}).acquire("gpu", 4, time.monotonic() + 10)
    assert slots.numbers == (0, 1, 2, 3)


def test_a_request_is_served_whole_or_not_at_all(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, {"cpu": 3})
    held = ledger.acquire("cpu", 2, NOW)
    with pytest.raises(ResourcesBusyError):
        ledger.acquire("cpu", 2, NOW)
    assert ledger.acquire("cpu", 1, NOW).numbers == (2,), "the failed request held nothing"
    held.release()
    held.release()


def test_more_than_there_are_means_all(tmp_path: Path) -> None:
    assert Ledger(tmp_path, {"cpu": 2}).acquire("cpu", 5, NOW).numbers == (0, 1)


def test_a_kind_without_slots_is_not_counted(tmp_path: Path) -> None:
    assert Ledger(tmp_path, {}).acquire("tpu", 2, NOW).numbers == ()
