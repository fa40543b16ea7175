"""Find losses, named values and results that only one of two runs recorded.

A program may let only one rank record something. So a rank that records none of it is not reported if another rank
records all of it. A rank that records some of it is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.observe import of_kind, shared_steps
from pytest_ddl.equivalence.evidence.results import returned
from pytest_ddl.records import RankRecord, TrainingRecord, VariableKind

_OF_ONE_PLACE = re.compile(r"(rank|replica|worker|task|device|process)\D{0,3}\d", re.IGNORECASE)
"""Names of values that belong to one replica or rank, so that one device may lack them."""
_OF_A_TUPLE = re.compile(r"loss\[\d+\]")
"""Names of the items of a tuple that a step returns. It may have an item for each replica."""
_SHOWN = 3

_Places = Mapping[str, Sequence[int]]
"""Name -> the steps in which it was recorded."""


def lone_losses(reference: TrainingRecord, distributed: TrainingRecord, last: int) -> str | None:
    """Describe the steps up to ``last`` in which only one side recorded a loss; ``None`` if there are none."""

    def losses(rank: RankRecord) -> _Places:
        return {"": [step.index for step in rank.steps[:last] if step.loss is not None]}

    places = _unpaired(losses(reference.ranks[0]), [(rank.task, losses(rank)) for rank in distributed.ranks])
    return next(iter(places.values()), None)


def lone_values(reference: TrainingRecord, distributed: TrainingRecord, last: int) -> list[str]:
    """Name the values that only one side recorded in some step up to ``last``, with the steps."""

    def values(rank: RankRecord) -> _Places:
        steps_of: dict[str, list[int]] = {}
        for step in rank.steps[:last]:
            for name in step.values:
                steps_of.setdefault(name, []).append(step.index)
        steps_of.pop(RUNNING_MEAN, None)
        return steps_of

    ours = values(reference.ranks[0])
    places = _unpaired(ours, [(rank.task, values(rank)) for rank in distributed.ranks])
    return [f"{name} ({where})" for name, where in places.items() if name in ours or not is_of_one_place(name)]


def is_of_one_place(name: str) -> bool:
    """Return whether the name of a value says that it belongs to one replica or rank; ``#2`` only counts values."""
    own = name.partition("#")[0]
    return bool(_OF_ONE_PLACE.search(own) or _OF_A_TUPLE.fullmatch(own))


def lone_results(reference: TrainingRecord, distributed: TrainingRecord, last: int) -> list[str]:
    """Name the results of ``fit``, ``evaluate`` and ``predict`` that only one side has up to step ``last``.

    A run that continued after an interruption lacks the calls before it.
    """
    first = max((step for rank in distributed.ranks for step in rank.resumed), default=-1)
    names: dict[str, str] = {}

    def results(rank: RankRecord) -> _Places:
        steps_of = {}
        for (kind, step, path), item in returned(rank).items():
            if first < step <= last:
                steps_of[f"{kind} {step} {path}"] = [step]
                names.setdefault(f"{kind} {step} {path}", item.name)
        return steps_of

    places = _unpaired(results(reference.ranks[0]), [(rank.task, results(rank)) for rank in distributed.ranks], "after")
    return [f"{names[key]} ({where})" for key, where in places.items()]


def lone_ids(reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Describe the steps in which each side reported example ids; ``None`` if they are the same."""

    def places(record: TrainingRecord) -> _Places:
        steps = range(1, shared_steps(reference, distributed) + 1)
        return {"": [at for at in steps if any(batch.example_ids is not None for batch in record.batches(at))]}

    return next(iter(_unpaired(places(reference), [("all ranks", places(distributed))]).values()), None)


def lone_variables(reference: TrainingRecord, distributed: TrainingRecord, kinds: Sequence[VariableKind]) -> str | None:
    """Name a watched variable that only one side recorded at some time, or return ``None`` if there is none.

    A variable that lacks the component of a replica counts as well: the others do not show its value.
    """
    pairs = list(zip(of_kind(reference, *kinds), of_kind(distributed, *kinds), strict=False))
    steps = shared_steps(reference, distributed)
    for ours, theirs in pairs:
        since = max(ours.since, theirs.since)
        for rank in distributed.ranks:
            if not any(variable.index == theirs.index for variable in rank.variables):
                continue
            snapshots = [rank.initial, *(step.snapshot for step in rank.steps)]
            numbers = [len(snapshot.get(theirs.index, ())) for snapshot in snapshots]
            for step in range(since + 1 if since else 0, steps + 1):
                here = reference.value(ours.index, step) is not None
                when = f"after step {step}" if step else "before the first step"
                if here is not bool(numbers[step]):
                    where = "on one device" if here else f"under the strategy ({rank.task})"
                    return f"{ours.name} was recorded {where} only {when}"
                if numbers[step] not in (0, max(numbers)):
                    return (
                        f"{ours.name} was recorded on {numbers[step]} of {max(numbers)} replicas only {when} "
                        f"({rank.task})"
                    )
    return None


def _unpaired(ours: _Places, theirs: Sequence[tuple[str, _Places]], when: str = "in") -> dict[str, str]:
    """Map each name whose places differ to the places of both sides."""
    unpaired = {}
    for name in dict.fromkeys([*ours, *(name for _task, side in theirs for name in side)]):
        wanted = list(ours.get(name, ()))
        sides = [(task, list(side.get(name, ()))) for task, side in theirs]
        recorded = [(task, steps) for task, steps in sides if steps]
        wrong = [(task, steps) for task, steps in recorded if steps != wanted]
        if not recorded and wanted:
            wrong = sides
        if wrong:
            task, steps = wrong[0]
            unpaired[name] = f"on one device {_steps(wanted, when)}, under the strategy ({task}) {_steps(steps, when)}"
    return unpaired


def _steps(steps: Iterable[int], when: str) -> str:
    numbers = list(steps)
    if not numbers:
        return "never"
    if len(numbers) == 1:
        return f"{when} step {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{when} steps {numbers[0]} to {numbers[-1]}"
    return f"{when} steps {', '.join(map(str, numbers[:6]))}" + (" ..." if len(numbers) > 6 else "")
