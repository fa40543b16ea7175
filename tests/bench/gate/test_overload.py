"""Load of other processes on the machine, read from an invented /proc."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddl.bench.launching.machine import Load, Reading

TICKS = os.sysconf("SC_CLK_TCK")
OWN = 4_000_001


def reading(folder: Path, at: float, busy: int, own: int, pressure: int | None = None) -> Reading:
    """A reading after so many seconds on each of two cores, and of the gate's own processes."""
    (folder / str(OWN)).mkdir(parents=True, exist_ok=True)
    # user nice system idle iowait irq softirq steal guest guest_nice; guests are in user already.
    mine = f"{busy * TICKS - 20} 10 5 99999 777 {at * TICKS:.0f} 5 5 400 0"
    (folder / "stat").write_text(f"cpu  1 1 1 1 1 1 1 1 1 1\ncpu0 {mine}\ncpu1 {mine}\ncpu2 {mine}\nintr 1 2 3\n")
    (folder / str(OWN) / "stat").write_text(f"{OWN} (a) b) R {' '.join(['0'] * 10)} {own * TICKS - 5} 5 0 0\n")
    if pressure is not None:
        (folder / "pressure").mkdir(exist_ok=True)
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={pressure * 1_000_000}\nfull avg10=0 total=0\n"
        (folder / "pressure" / "cpu").write_text(text)
    return replace(Reading.take([OWN], folder, [0, 2]), at=at)


def test_what_the_gate_uses_itself_is_not_foreign(tmp_path: Path) -> None:
    before, after = reading(tmp_path, 0.0, 100, 10, 1), reading(tmp_path, 10.0, 109, 27, 6)
    load = before.until(after, 1.0)
    assert load.foreign_cores == pytest.approx(0.1)
    assert load.stalled == pytest.approx(0.5)
    assert load.problem == ""


def test_foreign_use_is_a_problem_in_words(tmp_path: Path) -> None:
    before, after = reading(tmp_path, 0.0, 100, 10), reading(tmp_path, 10.0, 110, 18)
    load = before.until(after, 4.0)
    assert load.foreign_cores == pytest.approx(1.2)
    assert "kept 1.2 of 2 cores busy (up to 0.35 is accepted; load average 4.0)" in load.problem
    assert load.stalled is None


def test_a_large_machine_tolerates_more() -> None:
    assert Load(1.0, 3.0, 64, 3.0).problem == ""
    assert Load(1.0, 7.0, 64, 7.0).problem != ""


def test_others_on_the_gpu_are_a_problem() -> None:
    assert "GPU" in Load(1.0, 0.0, 8, 0.0, foreign_gpu=("process 1 on GPU 0",)).problem


def test_a_system_without_proc_tells_nothing(tmp_path: Path) -> None:
    before = Reading.take([OWN], tmp_path)
    load = before.until(Reading.take([OWN], tmp_path), 0.0)
    assert load.foreign_cores is None
    assert load.problem == ""
