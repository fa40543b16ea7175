"""Calls of ``run.steps``, ``run.batches`` and ``run.fit`` that the limit of steps left without a step, or cut off."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pytest_ddl.hints import Hint
from pytest_ddl.records import CallSite, TrainingRecord
from pytest_ddl.tracebacks import is_own

_MOST = 3
"""Maximum number of calls that are named, and of frames that are shown for each."""


def without_a_step(reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Name the calls that never ran because others had taken all steps, with advice; ``None`` if there are none."""
    ranks = (*reference.ranks, *distributed.ranks)
    sites = [site for rank in ranks for site, ran in rank.facts.get("call_sites", {}).items() if not ran]
    if not sites:
        return None
    named = list(dict.fromkeys(map(_described, sites)))
    more = f", and {len(named) - _MOST} more," if len(named) > _MOST else ""
    return (
        f"{Hint.LIMIT(sites[0].limit)} was used up before {'; '.join(named[:_MOST])}{more} began, so "
        f"{'it was' if len(named) == 1 else 'they were'} not compared: {Hint.RAISE_STEPS}"
    )


def of_other_lengths(reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Describe a loop that was ended by the limit, and whose own number of steps is not that of one device.

    A run that continued after an interruption may count from another step.
    """
    if any(rank.resumed for rank in distributed.ranks):
        return None
    for fact, what in _CUT.items():
        ours, *theirs = (rank.facts.get(fact, ()) for rank in (*reference.ranks[:1], *distributed.ranks))
        for ends in theirs:
            if ends != ours:
                counts = [", ".join(map(str, one)) or "none" for one in (ends, ours)]
                return (
                    f"the limit of steps ended loops of other lengths: {what} {counts[0]} under the strategy, "
                    f"{counts[1]} on one device. A step takes one global batch for any number of replicas: let the "
                    "length of a loop not depend on it, or give the check no limit of steps"
                )
    return None


_CUT: Mapping[Literal["cut", "cut_fits"], str] = {
    "cut": "loops up to step",
    "cut_fits": "Model.fit with (epochs, steps_per_epoch)",
}
"""Fact about loops that the limit of steps ended -> what it holds."""
_OF_LIMIT: Sequence[Literal["call_sites", "cut", "cut_fits"]] = ("call_sites", *_CUT)


def without_call_sites(record: TrainingRecord) -> TrainingRecord:
    """Remove the facts about what the limit of steps did from a record."""
    ranks = []
    for rank in record.ranks:
        facts = rank.facts.copy()
        for name in _OF_LIMIT:
            facts.pop(name, None)
        ranks.append(replace(rank, facts=facts))
    return replace(record, ranks=tuple(ranks))


def _described(site: CallSite) -> str:
    own = [frame for frame in site.frames if is_own(frame[0])] or site.frames
    places = [_place(file, line) for file, line, _instruction in own[:_MOST]]
    return f"{Hint.CALL(site.method)} at {', called from '.join(places)}"


def _place(file: str, line: int) -> str:
    here = os.getcwd() + os.sep
    return f"{os.path.relpath(file) if file.startswith(here) else file}:{line}"
