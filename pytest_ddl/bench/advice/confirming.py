"""Measure a change against the program as it is in new launches, and say whether the expected gain held."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_ddl.bench.advice.facts.evidence import Contender
from pytest_ddl.bench.advice.facts.gains import Gain, step_time
from pytest_ddl.bench.advice.turns import take_turns
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.bench.metrics.estimates import interval
from pytest_ddl.harness import Harness

LAUNCHES = 3
"""Pairs of launches that judge a change; an interval needs at least two."""


class ConfirmationOutcome(Enum):
    """Result of a confirmation."""

    HELD = "held"
    FAILED = "did not hold"
    OPEN = "not decided"


@dataclass(frozen=True)
class Confirmation:
    """Gain of a change, measured in launches that the advice did not come from."""

    change: str
    gain: Gain
    """Geometric mean over the launches, with its 95 % t interval."""
    samples: tuple[float, ...]
    """Gain of each pair of launches."""
    expected: Gain | None
    at_most: bool = False
    """True if ``expected`` is an upper bound, which a change need not reach."""

    @property
    def outcome(self) -> ConfirmationOutcome:
        """Held: the step is faster, and the intervals of the measured and of the expected gain overlap."""
        too_small = self.expected is not None and not self.at_most and self.gain.high < self.expected.low
        if self.gain.high <= 1 or too_small:
            return ConfirmationOutcome.FAILED
        return ConfirmationOutcome.HELD if self.gain.low > 1 else ConfirmationOutcome.OPEN

    def __str__(self) -> str:
        bound = "at most " if self.at_most else ""
        expected = f"; expected {bound}{self.expected}" if self.expected is not None else ""
        measured = f"a step is {self.gain}, {len(self.samples)} pairs of new launches{expected}"
        if self.outcome is ConfirmationOutcome.OPEN:
            return f"not decided: {measured}. Give more --launches, or a quieter machine"
        return f"{self.outcome.value}: {measured}"


def confirm(
    harness: Harness,
    train: Callable[[Any], Any],
    variant: str,
    bench: BenchSpec,
    *,
    knob: str = "base",
    after: Callable[[Any], Any] | None = None,
    expected: Gain | None = None,
    at_most: bool = False,
    launches: int = LAUNCHES,
    say: Callable[[str], None] = lambda _text: None,
) -> Confirmation:
    """Measure a change in pairs of new launches that take turns.

    :param knob: the change, if it can be made from outside.
    :param at_most: the expected gain is an upper bound.
    :param after: training function in which the user has made the change, in place of a knob.
    :raises BenchError: if one of both cannot be measured.
    :raises ValueError: if there are fewer than 2 launches.
    """
    if launches < 2:
        raise ValueError(f"launches={launches}: an interval needs at least 2")
    changed = Contender("changed", after or train, variant, bench, "base" if after is not None else knob)
    base = Contender("base", train, variant, bench)
    # A gain that only means show can be found again only in means.
    on_average = expected is not None and expected.on_average
    samples = []
    for number in range(launches):
        say(f"measuring the change in new launches, {number + 1} of {launches} …")
        # They begin in turn, because the first of two launches warms the machine up.
        order = [base, changed] if number % 2 == 0 else [changed, base]
        found, failed = take_turns(harness, order)
        if failed:
            raise BenchError(f"the change cannot be measured: {next(iter(failed.values()))}")
        old, new = (float(step_time(found[one.id].steps, on_average=on_average)) for one in (base, changed))
        samples.append(old / new)
    mean, low, high = interval(samples)
    gain = Gain(mean, low if low is not None else 0.0, high if high is not None else math.inf, on_average)
    return Confirmation(knob, gain, tuple(samples), expected, at_most)
