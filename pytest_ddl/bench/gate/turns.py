"""Blocks of both versions in turn: ABBA groups, only one side at work at a time, and the other one stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_ddl.bench.launching.pacing import LATE_TRACES

SETTLING = 8
"""A block is preceded by one that is so much shorter and does not count."""
BLOCK_SECONDS = 0.01
"""A block is made at least so long: the clock and the turn itself then matter little."""
MOST_BLOCK_SECONDS = 0.05
"""A block of slow steps is made shorter than ``steps_per_block``. The noise of a machine is slow: on two shared cores,
six seconds of a 1 ms step told the median ratio to .28 % in blocks of 10 ms, to .4 % of 20, to .9 % of 80."""
FEWEST_GROUPS = 4
LAUNCH_SECONDS = 5.0
"""Groups beyond ``FEWEST_GROUPS`` are run for at most so long."""


class Paced(Protocol):
    """What runs a block of steps when it is told to: a :class:`pytest_ddl.bench.launching.pacing.Lane`."""

    traces: int

    def run_block(self, steps: int, deadline: float, meanwhile: Callable[[], None]) -> list[float]:
        """Seconds of each rank."""

    def pause(self) -> None:
        """Stop its processes until :meth:`resume`."""

    def breathe(self) -> None:
        """Let them run for a moment where they are stopped."""

    def resume(self) -> None:
        """Let them go on."""


@dataclass
class Turns:
    """What the blocks of one launch gave."""

    steps: int
    """Of each block."""
    ratios: list[float] = field(default_factory=list)
    """Of each group: log of step time, HEAD over BASE."""
    base_steps: list[float] = field(default_factory=list)
    """Seconds of a step, one for each block."""
    head_steps: list[float] = field(default_factory=list)
    base_dropped: int = 0
    """Blocks in which BASE traced: their groups were run again."""
    head_dropped: int = 0

    @property
    def total_ratio(self) -> float:
        """Log of the time of all steps, HEAD over BASE: what is rare and long shows here, and in no median."""
        return math.log(sum(self.head_steps) / sum(self.base_steps))


def take_turns(
    base: Paced, head: Paced, steps: int, deadline: float, groups: int, *, head_first: bool = False
) -> Turns:
    """Run blocks in ABBA groups, of which each gives one log ratio: the mean of those of its two pairs.

    A drift that is linear over a group cancels out, and so does that a side's second block in a row finds its
    caches warm (counterbalancing; Fisher, *The Design of Experiments*, 1935, on balanced orders). A block takes
    as long as its slowest rank, as a synchronous step does.

    Blocks in which a side traced are not used, unless there are so many that tracing is what the program does.

    :param steps: of a block, as asked for; see :func:`calibrate`.
    :param deadline: ``time.monotonic`` at which to give up.
    :param head_first: BAAB instead of ABBA.
    :raises pytest_ddl.bench.launching.pacing.PacingError: when a rank leaves or is late.
    """
    try:
        return _take_turns(base, head, steps, deadline, groups, head_first)
    finally:
        for lane in (base, head):
            lane.resume()


def _take_turns(base: Paced, head: Paced, steps: int, deadline: float, groups: int, head_first: bool) -> Turns:
    first, second = (head, base) if head_first else (base, head)
    other = {id(base): head, id(head): base}

    def alone(lane: Paced, steps: int) -> float:
        waiting = other[id(lane)]
        waiting.pause()
        lane.resume()
        # Its threads wake up, its caches are cold and its pipeline stood still: not what a steady step finds.
        lane.run_block(max(1, steps // SETTLING), deadline, waiting.breathe)
        return max(lane.run_block(steps, deadline, waiting.breathe))

    # In this order, so that the first block finds its caches as those after it do.
    steps = calibrate(alone, (second, first), steps)
    turns = Turns(steps)
    begun = time.monotonic()
    while len(turns.ratios) < groups:
        if len(turns.ratios) >= FEWEST_GROUPS and time.monotonic() - begun > LAUNCH_SECONDS:
            break
        seconds: dict[int, list[float]] = {id(base): [], id(head): []}
        traced = {id(base): 0, id(head): 0}
        for lane in (first, second, second, first):
            before = lane.traces
            seconds[id(lane)].append(alone(lane, steps))
            traced[id(lane)] += lane.traces != before
        if any(traced.values()) and turns.base_dropped + turns.head_dropped < LATE_TRACES:
            turns.base_dropped += traced[id(base)]
            turns.head_dropped += traced[id(head)]
            continue
        turns.base_steps += [one / steps for one in seconds[id(base)]]
        turns.head_steps += [one / steps for one in seconds[id(head)]]
        pairs = zip(seconds[id(head)], seconds[id(base)], strict=True)
        turns.ratios.append(sum(math.log(one / other) for one, other in pairs) / 2)
    return turns


def calibrate(run: Callable[[Paced, int], float], lanes: Sequence[Paced], steps: int) -> int:
    """Steps of a block: as asked for, more of very short steps, fewer of very long ones; the same for both sides."""
    few = min(steps, 5)
    for lane in lanes:
        run(lane, few)  # what is left of the warm-up
    step = min(run(lane, few) / few for lane in lanes)
    enough = max(steps, math.ceil(BLOCK_SECONDS / step))
    return min(enough, max(1, math.floor(MOST_BLOCK_SECONDS / step)))
