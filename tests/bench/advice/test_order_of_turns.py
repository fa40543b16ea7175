"""Turns: their order, their number, and launches that wait for long are resumed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.bench.advice import turns
from pytest_ddl.bench.advice.facts.evidence import Contender
from pytest_ddl.bench.launching import pacing
from pytest_ddl.bench.launching.ranks import BenchError, EndedEarlyError
from pytest_ddl.bench.launching.records import BenchSpec


class Clock:
    """Time that only passes in blocks of steps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class FakeLane:
    """Lane whose steps take a fixed time."""

    def __init__(self, name: str, clock: Clock, step: float, log: list[str]) -> None:
        self.name, self.clock, self.step, self.log = name, clock, step, log
        self.traces = 0
        self.traces_after: set[int] = set()
        """Blocks of all lanes after which this one has traced a function."""
        self.works = True

    def run_block(self, steps: int, _deadline: float, _meanwhile: Any = None) -> list[float]:
        assert self.works
        self.log.append(self.name)
        self.clock.now += steps * self.step
        self.traces += len(self.log) in self.traces_after
        return [steps * self.step, steps * self.step / 2]

    def pause(self) -> None:
        self.works = False

    def resume(self) -> None:
        self.works = True

    def resume_briefly(self) -> None:
        assert not self.works
        self.log.append(f"({self.name})")


class Launched:
    deadline = 1e9


def taken(
    monkeypatch: pytest.MonkeyPatch, traces_after: set[int] | None = None, **steps: float
) -> tuple[dict[str, list[tuple[float, ...]]], list[str]]:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    for module in (turns, pacing):
        monkeypatch.setattr(module, "time", clock)
    lanes: Any = {Launched(): FakeLane(name, clock, step, log) for name, step in steps.items()}
    for lane in lanes.values():
        lane.traces_after = traces_after or set()
    found = turns._turns(lanes)
    return dict(zip(steps, found.values(), strict=True)), log


def test_turns_are_taken_forward_and_back_until_intervals_are_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    found, log = taken(monkeypatch, base=0.001, fast=0.0005)
    # Equal steps have intervals of no width, so the first look ends the turns.
    assert len(found["base"]) == len(found["fast"]) == 10
    assert found["base"][0] == pytest.approx((0.001, 0.0005))
    # Each turn has a part before it that is not measured.
    assert log[-8:] == ["base", "base", "fast", "fast", "fast", "fast", "base", "base"]
    assert not any(name.startswith("(") for name in log)


def test_launches_that_wait_for_long_are_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    _found, log = taken(monkeypatch, base=1.0, second=1.0, third=1.0)
    assert "(base)" in log
    assert "(third)" in log


def test_slow_steps_have_short_turns_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found, log = taken(monkeypatch, base=1.0, second=1.0)
    assert len(found["base"]) >= turns.FEWEST_GROUPS
    assert len(log) < 200


def test_groups_in_which_something_is_traced_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    _found, without = taken(monkeypatch, base=0.001, fast=0.0005)
    first = len(without) - 5
    found, log = taken(monkeypatch, {first}, base=0.001, fast=0.0005)
    assert len(found["base"]) == 10
    assert len(log) == len(without) + 8
    # A program that traces all the time is measured with its tracing.
    found, log = taken(monkeypatch, set(range(10_000)), base=0.001, fast=0.0005)
    assert len(found["base"]) == 10
    assert len(log) == len(without) + 8 * turns.LATE_TRACES


def test_a_program_that_ends_by_itself_is_not_launched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launch with a knob has ended first, which says that the program as it is would end, too."""
    launched = []

    class Running(contextlib.nullcontext):  # type: ignore[type-arg]
        def __init__(self, contender: Contender, _harness: Any, _folder: Path) -> None:
            super().__init__(self)
            launched.append(contender.id)
            self.contender, self.failed = contender, contender.id == "again"
            self.error = EndedEarlyError("ended after 201 step(s)") if self.failed else BenchError("no result")

        def accept(self) -> Any:
            return SimpleNamespace(stop=lambda: None)

        def result(self, _turns: object) -> None:
            pass

    def leave(_lanes: object) -> None:
        raise pacing.PacingError("a rank closed its connection")

    monkeypatch.setattr(turns, "_Running", Running)
    monkeypatch.setattr(turns, "own_harnesses", lambda _harness, number: contextlib.nullcontext([None] * number))
    monkeypatch.setattr(turns, "_turns", leave)
    contenders = [
        Contender(name, print, "mirrored", BenchSpec(global_batch_size=4), name) for name in ("base", "again")
    ]
    with pytest.raises(BenchError, match="ended after 201 step"):
        turns.take_turns(SimpleNamespace(folder=tmp_path), contenders)  # type: ignore[arg-type]
    assert launched == ["base", "again"]
