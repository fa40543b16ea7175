"""Counts of a step: single numbers that asv tracks without samples, because they do not depend on time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_ddl.bench.counters.retraces import SETTLED
from pytest_ddl.bench.launching.records import Counters
from pytest_ddl.bench.metrics.registry import NoNumberError


@dataclass(frozen=True)
class Count:
    """Number that is taken from the counters of a launch; less is better. Of several launches, the largest counts."""

    name: str
    unit: str
    meaning: str
    of: Callable[[Counters], int]
    exact: bool = True
    """True if the number is the same in every launch."""
    judged: bool = True
    """False if more can be better or worse. Then the history reports changes without judging them, as the gate does."""
    of_eager: bool = False
    """True if the number exists for steps that ran eagerly."""

    def read(self, counters: Counters) -> int:
        """Return the number of one launch.

        :raises NoNumberError: if it was not counted.
        """
        if counters.eager and not self.of_eager:
            raise NoNumberError("steps ran eagerly: their operations are in no graph and were not counted")
        return self.of(counters)


def _copies(counters: Counters) -> int:
    if counters.copies is None:
        raise NoNumberError("copies between host and devices were not counted")
    return sum(counters.copies.values())


_ALL = (
    Count("collectives", "", "collectives per step, of one replica", lambda one: sum(one.collectives.values())),
    Count(
        "reduced_bytes", "bytes", "bytes that one replica puts into reductions per step", lambda one: one.reduced_bytes
    ),
    # More parameters may explain more reduced bytes.
    Count("parameter_bytes", "bytes", "bytes of trainable variables", lambda one: one.parameter_bytes, judged=False),
    Count("unpacked", "", "reductions per step that carry a single tensor", lambda one: one.unpacked),
    Count("nodes", "", "operations in the graphs of a step", lambda one: one.nodes, judged=False),
    Count("traces", "", "functions traced up to the first steady step", lambda one: one.traces, judged=False),
    # With ragged batches, their number is up to chance, but not whether there are any.
    Count(
        "retraces", "", "traces within the steady steps; 0 for a correct program", lambda one: one.retraces, exact=False
    ),
    # A program that has not settled may trace at any time, so its number of retraces is up to chance.
    Count(
        "traces_on",
        "",
        f"1 if functions were traced within the steady steps, or more than {SETTLED} before them; else 0",
        lambda one: int(one.retraces > 0 or one.traces > SETTLED),
    ),
    # This counter exists for every measured cell, while the others end if a step is no longer compiled.
    Count("eager", "", "1 if steps ran eagerly, else 0", lambda one: int(one.eager), of_eager=True),
    Count("copies", "", "tensors per step that are copied between host and devices", _copies),
    Count("misplaced", "", "variables that are not on a device of their replica", lambda one: len(one.misplaced)),
)
COUNTS: dict[str, Count] = {one.name: one for one in _ALL}
"""All counts by name."""
