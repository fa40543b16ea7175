"""The ledger of slots that xdist workers share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster.resources import Ledger, ResourcesBusyError
from tests.polling import pause, wait_until

NOW = 0.0
"""A deadline that has passed: do not wait."""
HOLDER = """
import sys, time
from pathlib import Path
from pytest_ddl.cluster.resources import Ledger
ledger = Ledger(Path(sys.argv[1]), {"cpu": 3, "gpu": 4})
print(*ledger.acquire(sys.argv[3], int(sys.argv[2]), time.monotonic() + 60).numbers, flush=True)
sys.stdin.read()
"""


def hold(folder: Path, count: int, kind: str = "gpu") -> Any:
    command = [sys.executable, "-c", HOLDER, str(folder), str(count), kind]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_never_hold_one_slot(tmp_path: Path) -> None:
    holders = [hold(tmp_path, 2) for _ in range(2)]
    numbers = Counter(number for holder in holders for number in holder.stdout.readline().split())
    assert numbers == {"0": 1, "1": 1, "2": 1, "3": 1}
    with pytest.raises(ResourcesBusyError, match="1 of 4 gpu slots did not become free") as error:
        Ledger(tmp_path, {"gpu": 4}).acquire("gpu", 1, NOW)
    first, second = sorted(holder.pid for holder in holders)
    assert f"held by processes {first}, {second}. " in str(error.value)
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
    ledger = Ledger(tmp_path, {"gpu": 3})
    held = ledger.acquire("gpu", 2, NOW)
    with pytest.raises(ResourcesBusyError, match="held by this process"):
        ledger.acquire("gpu", 2, NOW)
    assert ledger.acquire("gpu", 1, NOW).numbers == (2,), "the failed request held nothing"
    held.release()
    held.release()


def test_more_than_there_are_means_all(tmp_path: Path) -> None:
    assert Ledger(tmp_path, {"cpu": 2}).acquire("cpu", 5, NOW).numbers == (0, 1)


def test_a_kind_without_slots_is_not_counted(tmp_path: Path) -> None:
    assert Ledger(tmp_path, {}).acquire("tpu", 2, NOW).numbers == ()


def test_a_process_that_holds_slots_of_cpus_does_not_wait_for_itself(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, {"cpu": 3})
    first = ledger.acquire("cpu", 2, NOW)
    second = ledger.acquire("cpu", 2, time.monotonic() + 60)
    third = ledger.acquire("cpu", 2, time.monotonic() + 60)
    assert (first.numbers, second.numbers, third.numbers) == ((0, 1), (2,), ())
    for slots in (first, second, third):
        slots.release()
    # Without slots, it waits like any other process.
    other = hold(tmp_path, 3, "cpu")
    other.stdout.readline()
    with pytest.raises(ResourcesBusyError):
        ledger.acquire("cpu", 1, NOW)
    other.communicate(timeout=30)


def test_a_request_for_all_slots_has_its_turn(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, {"gpu": 4})
    small = ledger.acquire("gpu", 1, NOW)
    large = hold(tmp_path, 4)
    turn = tmp_path / "gpu-turn"
    wait_until(lambda: turn.exists() and turn.read_text().strip() == str(large.pid))
    # Three slots are free, but the process whose turn it is needs four.
    with pytest.raises(ResourcesBusyError, match=f"{large.pid}"):
        ledger.acquire("gpu", 1, NOW)
    small.release()
    assert large.stdout.readline().split() == ["0", "1", "2", "3"]
    large.communicate(timeout=30)


def test_slots_are_shared_by_those_that_say_so(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path, {"gpu": 2}) for _ in range(3)]
    ledgers[1].first = 1
    assert [ledger.acquire("gpu", 1, NOW, shared=True).numbers for ledger in ledgers] == [(0,), (1,), (0,)]
    with pytest.raises(ResourcesBusyError):
        Ledger(tmp_path, {"gpu": 2}).acquire("gpu", 1, NOW)


def test_who_shares_a_slot_does_not_wait_for_itself(tmp_path: Path) -> None:
    """Another process may wait until nobody shares the slot, and has the turn."""
    ledger = Ledger(tmp_path, {"gpu": 4})
    first = ledger.acquire("gpu", 1, NOW, shared=True)
    waiting = hold(tmp_path, 4)
    wait_until(lambda: ledger.is_awaited("gpu"))
    second = ledger.acquire("gpu", 1, time.monotonic() + 60, shared=True)
    first.release()
    second.release()
    assert waiting.stdout.readline().split() == ["0", "1", "2", "3"]
    with pytest.raises(ResourcesBusyError, match=f"{waiting.pid}"):
        ledger.acquire("gpu", 1, NOW, shared=True)
    assert not ledger.is_awaited("gpu")
    waiting.communicate(timeout=30)


def test_the_wait_goes_on_while_slots_change_hands(tmp_path: Path) -> None:
    """Others may need longer than the patience of this process, as long as they go on."""
    holder, patience, rounds = hold(tmp_path, 4), 3.0, []
    holder.stdout.readline()
    waiting = ThreadPoolExecutor(1).submit(
        lambda: Ledger(tmp_path, {"gpu": 4}).acquire("gpu", 1, time.monotonic() + patience)
    )
    started = time.monotonic()
    while time.monotonic() - started < 1.5 * patience:
        rounds.append(waiting.done())
        # What a process does that takes a slot.
        os.utime(tmp_path / "gpu-0")
        pause()
    assert not any(rounds)
    holder.communicate(timeout=30)
    assert waiting.result(timeout=30).numbers == (0,)


def test_a_stuck_holder_is_named_once_nothing_changes(tmp_path: Path) -> None:
    holder = hold(tmp_path, 4)
    holder.stdout.readline()
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(ResourcesBusyError, match=rf"within 0 s; held by process {holder.pid}\. .* if they are stuck"):
        Ledger(tmp_path, {"gpu": 4}).acquire("gpu", 1, time.monotonic() + 0.2)
    holder.kill()
    holder.communicate(timeout=30)
