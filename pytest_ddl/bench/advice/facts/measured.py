"""Keep the measurement of one launch that took turns with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_ddl.bench.advice.facts.changed import Notes
from pytest_ddl.bench.advice.facts.knobs import KNOBS
from pytest_ddl.bench.launching.records import BenchSpec, Launch


@dataclass(frozen=True)
class Contender:
    """One launch that takes turns with others: a training function with a knob under a variant of a strategy."""

    id: str
    train: Callable[[Any], Any] = field(repr=False)
    variant: str
    bench: BenchSpec
    knob: str = "base"


@dataclass
class Measured:
    """Measurement of one launch, which took turns with others."""

    contender: Contender
    launch: Launch
    notes: tuple[Notes, ...]
    turns: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds of a counted step of each rank, one tuple for each group of turns; the mean of its two turns."""

    @property
    def work(self) -> float:
        """Steps of the program, at its own batch size, that one counted step does."""
        knob = KNOBS[self.contender.knob]
        in_steps = any(notes.loops == "steps" for notes in self.notes)
        return float(knob.batch * (knob.calls if in_steps else 1))

    @property
    def steps(self) -> list[float]:
        """Seconds of the slowest rank for the work of one step of the program without a knob, by group."""
        return [max(turn) / self.work for turn in self.turns]
