"""Blocks in turn: order, what cancels out, and what is dropped. The clock of these lanes is made up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest

from pytest_ddl.bench.gate.lockstep import BLOCK_SECONDS, take_turns


class Machine:
    """Machine on which both lanes run, with a clock and the lane that ran last."""

    def __init__(self, drift: float = 0.0, cold: float = 0.0) -> None:
        self.drift, self.cold, self.blocks = drift, cold, 0
        self.order: list[str] = []
        self.lanes: list[FakeLane] = []


class FakeLane:
    def __init__(self, machine: Machine, name: str, step: float, traced_blocks: tuple[int, ...] = ()) -> None:
        self.machine, self.name, self.step, self._traced = machine, name, step, traced_blocks
        self.traces, self._ran, self.paused, self.breaths = 1, 0, False, 0
        machine.lanes.append(self)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def resume_briefly(self) -> None:
        assert self.paused
        self.breaths += 1

    def run_block(self, steps: int, deadline: float, meanwhile: Callable[[], None]) -> list[float]:
        machine = self.machine
        meanwhile()  # as in a block that takes seconds
        assert [lane.name for lane in machine.lanes if not lane.paused] == [self.name]
        cold = machine.cold if machine.order and machine.order[-1] != self.name else 0.0
        machine.order.append(self.name)
        machine.blocks += 1
        self._ran += 1
        self.traces += self._ran in self._traced
        seconds = self.step * steps * math.exp(machine.drift * machine.blocks + cold)
        # A second rank that is faster: the slowest one counts.
        return [seconds, seconds / 2]


def lanes(base: float = 0.002, head: float = 0.002, traced: tuple[int, ...] = (), **machine: float) -> list[FakeLane]:
    shared = Machine(**machine)
    return [FakeLane(shared, "base", base), FakeLane(shared, "head", head, traced)]


def test_who_waits_for_a_long_block_is_let_run_now_and_then() -> None:
    base, head = lanes()
    take_turns(base, head, 20, math.inf, 2)
    assert base.breaths == base.machine.order.count("head")
    assert head.breaths == base.machine.order.count("base")


def test_blocks_run_in_abba_order() -> None:
    base, head = lanes()
    take_turns(base, head, 20, math.inf, 2)
    # Each block comes after a short one of the same side, which does not count.
    assert base.machine.order[-16:] == [name for name in ("base", "head", "head", "base") * 2 for _ in range(2)]
    base, head = lanes()
    take_turns(base, head, 20, math.inf, 2, head_first=True)
    assert base.machine.order[-16:] == [name for name in ("head", "base", "base", "head") * 2 for _ in range(2)]


def test_a_slowdown_is_the_log_ratio_of_step_times() -> None:
    turns = take_turns(*lanes(head=0.002 * 1.05), 20, math.inf, 6)
    assert turns.ratios == pytest.approx([math.log(1.05)] * 6)
    assert statistics.median(turns.base_steps) == pytest.approx(0.002)
    assert statistics.median(turns.head_steps) == pytest.approx(0.0021)


@pytest.mark.parametrize("head_first", [False, True])
def test_drift_and_cold_caches_cancel_out(head_first: bool) -> None:
    turns = take_turns(*lanes(drift=0.01, cold=0.2), 20, math.inf, 8, head_first=head_first)
    assert turns.ratios == pytest.approx([0.0] * 8, abs=1e-12)


def test_blocks_in_which_a_side_traced_are_run_again() -> None:
    turns = take_turns(*lanes(traced=(6, 11)), 20, math.inf, 4)
    assert (turns.base_dropped, turns.head_dropped) == (0, 2)
    assert len(turns.ratios) == 4


def test_a_program_that_always_traces_is_measured_as_it_is() -> None:
    turns = take_turns(*lanes(traced=tuple(range(1000))), 20, math.inf, 4)
    assert len(turns.ratios) == 4


@pytest.mark.parametrize(
    ("step", "asked", "steps"),
    [(0.002, 20, 20), (0.0001, 20, round(BLOCK_SECONDS / 0.0001)), (0.02, 20, 2), (3, 20, 1)],
)
def test_blocks_are_neither_too_short_nor_too_long(step: float, asked: int, steps: int) -> None:
    turns = take_turns(*lanes(step, step), asked, math.inf, 4)
    assert turns.steps == pytest.approx(steps, abs=1)


def test_both_sides_go_on_when_it_is_over_whatever_happens() -> None:
    base, head = lanes()
    take_turns(base, head, 20, math.inf, 2)
    assert [lane.paused for lane in (base, head)] == [False, False]
    head.run_block = lambda *_given: 1 / 0
    with pytest.raises(ZeroDivisionError):
        take_turns(base, head, 20, math.inf, 2)
    assert [lane.paused for lane in (base, head)] == [False, False]


def test_rare_and_long_steps_show_in_the_total_alone() -> None:
    base, head = lanes()
    plain = head.run_block

    def sometimes(steps: int, deadline: float, meanwhile: Callable[[], None]) -> list[float]:
        return [seconds + (1.0 if head._ran % 5 == 0 else 0.0) for seconds in plain(steps, deadline, meanwhile)]

    head.run_block = sometimes
    turns = take_turns(base, head, 20, math.inf, 8)
    assert statistics.median(turns.ratios) == pytest.approx(0.0)
    assert turns.total_ratio > math.log(2)
