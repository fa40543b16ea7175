"""Run blocks of both versions in turn, in ABBA groups: one side works while the other one is stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_ddl.bench.launching.pacing import LATE_TRACES

SETTLING = 8
"""Factor by which the block before each measured block is shorter. The shorter block does not count."""
BLOCK_SECONDS = 0.01
"""Minimum seconds of a block, so that the resolution of the clock and the cost of a turn have little effect."""
MOST_BLOCK_SECONDS = 0.05
"""Seconds above which a block gets fewer steps than ``steps_per_block``.

The noise of a machine changes slowly. On two shared cores, six seconds of a 1 ms step gave the median ratio to .28 %
with blocks of 10 ms, to .4 % with 20 ms, and to .9 % with 80 ms."""
FEWEST_GROUPS = 4
LAUNCH_SECONDS = 5.0
"""Seconds after which no group beyond ``FEWEST_GROUPS`` begins."""


class BlockRunner(Protocol):
    """Ranks that run blocks of steps on command, such as a :class:`pytest_ddl.bench.launching.pacing.Lane`."""

    traces: int

    def run_block(self, steps: int, deadline: float, meanwhile: Callable[[], None]) -> list[float]:
        """Run a block of steps and return the seconds of each rank."""

    def pause(self) -> None:
        """Stop the processes until :meth:`resume`."""

    def breathe(self) -> None:
        """Let the processes run for a moment if they are stopped."""

    def resume(self) -> None:
        """Let the processes continue."""


@dataclass
class Turns:
    """Measurements from the blocks of one launch."""

    steps: int
    ratios: list[float] = field(default_factory=list)
    """Log of the step times' ratio, HEAD over BASE, one for each group."""
    base_steps: list[float] = field(default_factory=list)
    """Seconds of a step, one for each block."""
    head_steps: list[float] = field(default_factory=list)
    base_dropped: int = 0
    """Blocks in which BASE traced. Their groups were run again."""
    head_dropped: int = 0

    @property
    def total_ratio(self) -> float:
        """Log of the ratio of all steps' time, HEAD over BASE. It shows rare long steps, which no median shows."""
        return math.log(sum(self.head_steps) / sum(self.base_steps))


def take_turns(
    base: BlockRunner, head: BlockRunner, steps: int, deadline: float, groups: int, *, head_first: bool = False
) -> Turns:
    """Run blocks in ABBA groups. Each group gives one log ratio, the mean over its two pairs.

    A drift that is linear over a group cancels out. So does the advantage of a second block in a row, which finds its
    caches warm (counterbalancing; Fisher, *The Design of Experiments*, 1935, on balanced orders). A block takes as long
    as its slowest rank, as a synchronous step does.

    Groups in which a side traced are run again. After ``LATE_TRACES`` such blocks they are used, because tracing is
    then a part of what the program does.

    :param steps: requested steps of a block; see :func:`calibrate`.
    :param deadline: ``time.monotonic`` at which to give up.
    :param head_first: use BAAB instead of ABBA.
    :raises pytest_ddl.bench.launching.pacing.PacingError: if a rank leaves or is late.
    """
    try:
        return _take_turns(base, head, steps, deadline, groups, head_first)
    finally:
        for lane in (base, head):
            lane.resume()


def _take_turns(
    base: BlockRunner, head: BlockRunner, steps: int, deadline: float, groups: int, head_first: bool
) -> Turns:
    first, second = (head, base) if head_first else (base, head)
    other = {id(base): head, id(head): base}

    def alone(lane: BlockRunner, steps: int) -> float:
        waiting = other[id(lane)]
        waiting.pause()
        lane.resume()
        # This block is not timed: after a pause, threads wake up, caches are cold, and the input pipeline stood still.
        lane.run_block(max(1, steps // SETTLING), deadline, waiting.breathe)
        return max(lane.run_block(steps, deadline, waiting.breathe))

    # The calibration ends with ``first``, so that the first block finds its caches as the first block of each later
    # group does.
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


def calibrate(run: Callable[[BlockRunner, int], float], lanes: Sequence[BlockRunner], steps: int) -> int:
    """Return the steps of a block, for both sides: as requested, more if steps are very short, fewer if very long."""
    few = min(steps, 5)
    for lane in lanes:
        run(lane, few)  # not timed: the rest of the warm-up
    step = min(run(lane, few) / few for lane in lanes)
    enough = max(steps, math.ceil(BLOCK_SECONDS / step))
    return min(enough, max(1, math.floor(MOST_BLOCK_SECONDS / step)))
