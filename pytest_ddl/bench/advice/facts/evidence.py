"""Evidence: all measurements of one variant that rules read, and the requests for those that are missing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_ddl.bench.advice.facts.changed import Notes
from pytest_ddl.bench.advice.facts.gains import Gain, Times, from_share, noise_of, resampled, step_time
from pytest_ddl.bench.advice.facts.measured import Measured
from pytest_ddl.bench.launching.records import Counters, Launch

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
        found = self.beyond_noise(self.gain(knob))
        return found or (self.beyond_noise(self.averages[knob]) if knob in self.averages else None)

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
        found = self._slowest(on_average=False)
        if self.beyond_noise(found[1]) or "again" not in self.averages:
            return found
        seldom = self._slowest(on_average=True)
        return seldom if self.beyond_noise(seldom[1]) else found

    def _slowest(self, *, on_average: bool) -> tuple[int, Gain]:
        turns = self.measured["alone"].turns
        of_ranks = [[turn[rank] for turn in turns] for rank in range(len(self.launch.ranks))]
        typical = [step_time(times, on_average=on_average) for times in of_ranks]
        slow, fast = typical.index(max(typical)), typical.index(min(typical))

        def saved(times: Sequence[Times]) -> float:
            whole, longest, shortest = (step_time(one, on_average=on_average) for one in times)
            return whole / max(whole - (longest - shortest), whole / 100)

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
