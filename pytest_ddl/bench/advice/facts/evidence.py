"""Evidence on one variant that rules read, from launches that took turns or from an evaluation, and what is missing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ddl.bench.advice.facts.changed import Notes
from pytest_ddl.bench.advice.facts.gains import Gain, Times, from_share, noise_of, resampled, step_time
from pytest_ddl.bench.advice.facts.knobs import KNOBS
from pytest_ddl.bench.launching.records import BenchSpec, Counters, Launch
from pytest_ddl.bench.matrix import Matrix, matrix_of, read_object
from pytest_ddl.bench.metrics.estimates import estimate
from pytest_ddl.bench.metrics.of_pair import UNSCALED
from pytest_ddl.bench.outcome import UsageError


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


NEEDS_PROGRAM = "give MODULE:FUNCTION too, and it is measured"


def read(path: Path) -> Matrix:
    """Read the matrix of an evaluation (key ``matrix``), or a matrix that ``Matrix.save`` wrote.

    :raises UsageError: if the file cannot be read, or holds neither.
    """
    data = read_object(path)
    matrix = matrix_of(path, data)
    if not matrix.launches:
        raise UsageError(f"{path} has no launches: nothing was measured")
    refused = _refused(matrix, data.get("verdicts", {}))
    kept = tuple(one for one in matrix.launches if one.strategy not in refused)
    if not kept:
        raise UsageError(f"{path} has no launch to give advice on: {next(iter(refused.values()))}")
    return replace(matrix, launches=kept, skipped={**matrix.skipped, **refused})


def _refused(matrix: Matrix, verdicts: dict[str, Any]) -> dict[str, str]:
    """Return the variants of a matrix on which no advice is given, wrong or asynchronous ones, with the reason."""
    refused = {}
    for variant in matrix.variants:
        verdict = verdicts.get(variant, {}).get("verdict", "pass")
        if verdict not in ("pass", "known"):
            refused[variant] = f"{variant} is not shown to be correct (verdict of the evaluation: {verdict})"
        elif variant.partition("[")[0] in UNSCALED and variant.startswith("parameter_server"):
            refused[variant] = f"{variant}: {UNSCALED['parameter_server']}"
    return refused


def evidence_of(matrix: Matrix, variant: str) -> AdviceEvidence:
    """Return the evidence that a matrix has on one of its variants: counts, and the share of communication."""
    launch = matrix.of(variant)[0]
    found = estimate("communication_share", matrix, variant)
    without = None
    if found.value is not None:
        low = found.value if found.low is None else found.low
        high = found.value if found.high is None else found.high
        without = from_share(found.value, low, high)
    return AdviceEvidence(launch, communication_of_matrix=without)


PARTS = 10
"""Parts of the steady steps between which the share of a part of the step is compared."""


class MissingError(LookupError):
    """Raised if a rule needs a measurement that was not made.

    :param knob: id of the knob to measure; empty if it is not one.
    :param collective: kind and bytes of the collective to measure, if it is one.
    :param reason: reason why it cannot be measured; empty if it was only not asked for yet.
    """

    def __init__(self, knob: str = "", collective: tuple[str, int] | None = None, reason: str = "") -> None:
        what = f"a launch with {knob}" if knob else f"the time of {collective}" if collective else "notes of the steps"
        super().__init__(f"{what}: {reason or 'not measured'}")
        self.knob, self.collective, self.reason = knob, collective, reason


@dataclass
class AdviceEvidence:
    """Measurements of one variant."""

    launch: Launch
    """Launch of the program without a knob."""
    notes: tuple[Notes, ...] = ()
    """Notes of its ranks; empty if it was measured by something else than the advice."""
    gains: dict[str, Gain] = field(default_factory=dict)
    """Gain of each knob that was measured."""
    averages: dict[str, Gain] = field(default_factory=dict)
    """The same as :attr:`gains`, from means of turns."""
    measured: dict[str, Measured] = field(default_factory=dict)
    """Measurement of each knob that took turns first."""
    collectives: dict[tuple[str, int], float] = field(default_factory=dict)
    """Seconds of one collective by kind and bytes, with nothing else running."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Knob that cannot be measured -> reason."""
    communication_of_matrix: Gain | None = None
    """Gain without communication, from an evaluation that has one replica and several."""

    @property
    def counters(self) -> Counters:
        return self.launch.counters

    @property
    def replicas(self) -> int:
        return self.launch.replicas

    @property
    def noise(self) -> float:
        """Factor that a gain must exceed, because two launches of the same program differ by it."""
        return noise_of(self.gains.get("again"))

    def gain(self, knob: str) -> Gain:
        """Return the gain of a knob.

        :raises MissingError: if it was not measured.
        """
        if knob == "alone" and knob not in self.gains and self.communication_of_matrix is not None:
            return self.communication_of_matrix
        if knob not in self.gains:
            raise MissingError(knob=knob, reason=self.unavailable.get(knob, ""))
        return self.gains[knob]

    def helps(self, knob: str) -> Gain | None:
        """Return the gain of a knob if its lower bound is above the noise, else ``None``.

        The mean decides if the quartile shows nothing: a pipeline that reads a file every 30 steps stops few turns.
        """
        gain = self.beyond_noise(self.gain(knob))
        return gain or (self.beyond_noise(self.averages[knob]) if knob in self.averages else None)

    def beyond_noise(self, gain: Gain) -> Gain | None:
        """Return a gain if its lower bound is above the noise of two launches of the same program, else ``None``."""
        noise = noise_of(self.averages.get("again")) if gain.on_average else self.noise
        return gain if gain.low > noise else None

    def seconds_of(self, kind: str, size: int) -> float:
        """Return the seconds of one collective of a number of bytes.

        :raises MissingError: if it was not measured.
        """
        size = -(-max(4, size) // 4) * 4
        if (kind, size) not in self.collectives:
            raise MissingError(collective=(kind, size), reason=self.unavailable.get("collectives", ""))
        return self.collectives[kind, size]

    def share(self, part: str) -> Gain:
        """Return the gain if a part of the steps took no time: ``bodies``, ``traced`` or ``host`` of the notes.

        The rank with the largest share decides, because a synchronous step ends with its slowest rank. The interval is
        that of the shares of :data:`PARTS` parts of the steady steps.

        :raises MissingError: if the steps of no rank were noted.
        """
        shares = [_shares(notes, part) for notes in self.notes if len(notes.steps) >= PARTS]
        if not shares:
            raise MissingError()
        worst = max(shares, key=statistics.median)
        return from_share(statistics.median(worst), *np.percentile(worst, [2.5, 97.5]).tolist())

    def slowest_rank(self) -> tuple[int, Gain] | None:
        """Return the rank that computes longest, and the gain if it were as fast as the fastest; ``None`` for one rank.

        :raises MissingError: if the steps were not measured without communication.
        """
        if len(self.launch.ranks) < 2:
            return None
        self.gain("alone")
        if "alone" not in self.measured:
            raise MissingError(knob="alone", reason="an evaluation has no times of single ranks")
        slowest = self._slowest(on_average=False)
        if self.beyond_noise(slowest[1]) or "again" not in self.averages:
            return slowest
        seldom = self._slowest(on_average=True)
        return seldom if self.beyond_noise(seldom[1]) else slowest

    def _slowest(self, *, on_average: bool) -> tuple[int, Gain]:
        turns = self.measured["alone"].turns
        of_ranks = [[turn[rank] for turn in turns] for rank in range(len(self.launch.ranks))]
        typical = [step_time(times, on_average=on_average) for times in of_ranks]
        slow, fast = typical.index(max(typical)), typical.index(min(typical))

        def saved(times: Sequence[Times]) -> Any:
            whole, longest, shortest = (step_time(one, on_average=on_average) for one in times)
            return whole / np.maximum(whole - (longest - shortest), whole / 100)

        gain = resampled(saved, [self.measured["base"].steps, of_ranks[slow], of_ranks[fast]])
        return slow, replace(gain, on_average=on_average)

    @property
    def reductions(self) -> int:
        """All-reduces and other reductions of one step."""
        return self.counters.packs + self.counters.unpacked


def _shares(notes: Notes, part: str) -> list[float]:
    values: Mapping[str, list[float]] = {"bodies": notes.bodies, "traced": notes.traced, "host": notes.host}
    whole = np.array(notes.steps) + np.array(notes.bodies)
    chosen = np.array(values[part])
    return [
        float(chosen[rows].sum() / whole[rows].sum())
        for rows in np.array_split(np.arange(len(whole)), PARTS)
        if whole[rows].sum() > 0
    ]
