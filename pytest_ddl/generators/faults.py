"""Generate schedules of faults, and shrink one that breaks a training to the shortest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from pytest_ddl.faults.rank.fault import KINDS, Fault, FaultError, Point
from pytest_ddl.faults.trials import Schedule


@dataclass(frozen=True)
class FaultGenerator:
    """Generator of schedules; pass it as ``faults=`` to ``ddl_equivalence`` or ``check_training``."""

    kinds: tuple[str, ...]
    at_most: int
    examples: int
    seed: int

    def search(self, points: Sequence[tuple[str, Point]], run: Callable[[Schedule], bool]) -> None:
        """Call ``run`` with schedules until one returns False, and end with the shortest such schedule.

        :param points: the points of a run without faults, each with its task, in the order of time.
        """
        import hypothesis
        from hypothesis import strategies as st

        struck = st.tuples(st.sampled_from(self.kinds), st.sampled_from(list(dict.fromkeys(points))))
        schedules = st.lists(struck, min_size=1, max_size=self.at_most).map(
            lambda chosen: tuple(
                Fault(kind, task, point, attempt) for attempt, (kind, (task, point)) in enumerate(chosen, 1)
            )
        )
        settings = hypothesis.settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        try:
            shortest = hypothesis.find(
                schedules, lambda schedule: not run(schedule), settings=settings, random=Random(self.seed)
            )
        except hypothesis.errors.NoSuchExample:
            return
        run(shortest)


def faults(kinds: Sequence[str] = ("kill",), *, at_most: int = 2, examples: int = 20, seed: int = 0) -> FaultGenerator:
    """Return a generator of schedules with faults at the points of the program, each in an attempt of its own.

    :param kinds: kinds of faults, of :data:`pytest_ddl.faults.rank.fault.KINDS`, except those of single writes.
    :param at_most: maximum number of faults in a schedule, at least 1.
    :param examples: maximum number of schedules to try. Each takes two or more runs of the program.
    :param seed: seed of the choice, so that a run can be repeated.
    :raises FaultError: for a kind that does not exist, or that strikes only single writes.
    """
    for kind in kinds:
        if kind not in KINDS or KINDS[kind].only_in:
            valid = ", ".join(name for name, one in KINDS.items() if not one.only_in)
            raise FaultError(f"kinds={list(kinds)!r}: {kind!r} is not one of {valid}")
    if not kinds or at_most < 1 or examples < 1:
        raise FaultError(f"kinds={list(kinds)!r}, at_most={at_most}, examples={examples}: each must be at least one")
    return FaultGenerator(tuple(kinds), at_most, examples, seed)
