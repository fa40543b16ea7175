"""Say which example of the global batch each row of a replica's random numbers belongs to.

The controller learns it from the plain runs. In later runs, one device and the replicas then draw the same numbers for
the same example (common random numbers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pytest_ddl.records import Array


@dataclass(frozen=True)
class Rows:
    """Dimension of a draw whose entries belong to examples."""

    axis: int
    each: int = 1
    """Number of consecutive entries for each example."""
    parts: int = 1
    """Number of draws that follow each other, each for the next part of the examples (micro-batches)."""
    part: int | None = None
    """Index of its part of the examples; ``None`` if the same operation draws for one part after the other."""
    operation: int | None = None
    """Operation whose numbers it has, if each part has an operation of its own: that of the first part."""
    looped: bool = False
    """True if each execution in a loop draws for the next example. The numbers then have no dimension for examples."""


@dataclass(frozen=True)
class Shared:
    """A draw that belongs to no example, for example a mask over features. All replicas draw the same numbers."""


@dataclass(frozen=True)
class Spans:
    """A draw for a part of the data whose length depends on the data, for example for the words that are no padding.

    The replicas draw successive parts of what one device draws.
    """

    axis: int
    firsts: tuple[tuple[int, int, int], ...]
    """Step, replica, and the place of its first entry among those of one device."""

    def first(self, step: int, replica: int) -> int:
        return next((first for at, number, first in self.firsts if (at, number) == (step, replica)), 0)


@dataclass(frozen=True)
class Unplaced:
    """A draw of which it is not known to which examples its numbers belong. All its numbers are the same."""


Placement = Rows | Shared | Spans | Unplaced


@dataclass(frozen=True)
class Block:
    """Examples that a replica consumed in one call of its function."""

    replica: int
    places: tuple[int, ...]
    """Their positions in the global batch of one device, over all calls of a step, in the order of the replica."""


@dataclass(frozen=True, eq=False)
class Places:
    """Places of the examples in the global batches of all steps, and of the rows of all random operations."""

    global_batch_size: int | None
    blocks: Mapping[int, tuple[Block, ...]]
    """Step -> the examples of each call, by call and then by replica."""
    calls: Mapping[int, tuple[int, ...]]
    """Step -> size of the batch of each call on one device."""
    draws: Mapping[int, Placement] = field(default_factory=dict)
    """Index of the operation in the replica function -> placement of its numbers."""

    @cached_property
    def _digest(self) -> str:
        parts = (self.global_batch_size, sorted(self.blocks.items()), sorted(self.calls.items()), self.draws)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __repr__(self) -> str:
        """Show a digest of the content, so that settings with equal text have equal places."""
        return f"Places({self._digest})"

    def of_replica(self, step: int, replica: int, call: int) -> Array:
        """Return a row ``(place, block, index in the block)`` for each example of a call on a replica."""
        blocks = self.blocks.get(step, ())
        own = [(number, block) for number, block in enumerate(blocks) if block.replica == replica]
        if len(own) == 1:
            call = 0
        if call >= len(own):
            return np.zeros((0, 3), np.int64)
        number, block = own[call]
        return np.array([(place, number, index) for index, place in enumerate(block.places)], np.int64).reshape(-1, 3)

    def of_device(self, step: int, call: int, chosen: tuple[int, ...] | None = None) -> Array:
        """Return the rows as above for each example of a call on one device.

        :param chosen: positions in the global batch if the batch was cut down to these.
        """
        sizes = self.calls.get(step, ())
        if len(sizes) == 1:
            call = 0
        if call >= len(sizes):
            return np.zeros((0, 3), np.int64)
        first = sum(sizes[:call])
        within = {
            place: (place, number, index)
            for number, block in enumerate(self.blocks.get(step, ()))
            for index, place in enumerate(block.places)
        }
        places = range(sizes[call]) if chosen is None else chosen
        return np.array([within[first + place] for place in places], np.int64).reshape(-1, 3)

    def spans(self) -> tuple[int, ...]:
        """Return the operations whose draws have a length that depends on the data."""
        return tuple(sorted(number for number, placement in self.draws.items() if isinstance(placement, Spans)))

    def firsts(self, step: int, replica: int | None) -> list[int]:
        """Return the places of the first entries of these draws; 0 for one device."""
        spans = [self.draws[number] for number in self.spans()]
        return [0 if replica is None or not isinstance(s, Spans) else s.first(step, replica) for s in spans]

    def number_of_blocks(self, step: int) -> int:
        """Return the number of blocks in a step, at least 1."""
        return max(len(self.blocks.get(step, ())), 1)
