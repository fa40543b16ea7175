"""Join two attempts of one rank into one record: an interrupted attempt and the one that continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from pytest_ddl.records import RankRecord, Snapshot, VariableRecord
from pytest_ddl.run_facts import CallSite, RunFacts

Value = TypeVar("Value")


def joined(first: RankRecord, second: RankRecord, step: int) -> RankRecord:
    """Return one record with the steps of both attempts.

    :param first: an attempt, or several joined ones, interrupted after ``step``.
    """
    places = _places(first.variables, second.variables)
    if places is not None:
        second = _moved(second, first.variables, places)
    resumed: Mapping[int, Snapshot] = {**first.resumed, **(second.resumed or {step: {}})}
    initial = first.initial or second.initial
    return replace(
        second,
        initial=initial,
        steps=(*first.steps, *second.steps),
        resumed=resumed,
        writes=(*first.writes, *second.writes),
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
        facts={**second.facts, **_call_sites(first, second), **_generators(first, second)},
    )


def _call_sites(first: RankRecord, second: RankRecord) -> RunFacts:
    """Return the calls of both attempts. A loop that ran before the interruption need not run after it."""
    found: dict[CallSite, bool] = {}
    for rank in (first, second):
        for site, ran in rank.facts.get("call_sites", {}).items():
            found[site] = found.get(site, False) or ran
    return {"call_sites": found} if found else {}


def _generators(first: RankRecord, second: RankRecord) -> RunFacts:
    """Return the states of the random generators after the steps of both attempts."""
    found = {**first.facts.get("generators", {}), **second.facts.get("generators", {})}
    return {"generators": found} if found else {}


def _places(first: tuple[VariableRecord, ...], second: tuple[VariableRecord, ...]) -> dict[int, int] | None:
    """Map indices of the second attempt to those of the first, if both found their variables in different orders.

    A program that builds its model before it restores creates variables earlier than a program that begins training.
    """
    wanted, given = keys_of(first), keys_of(second)
    if given == wanted[: len(given)] or not set(given) <= set(wanted):
        return None
    return {item.index: wanted.index(key) for item, key in zip(second, given, strict=True)}


def keys_of(variables: tuple[VariableRecord, ...]) -> list[tuple[object, ...]]:
    """Return a key for each variable. Variables with the same name, as in two models, differ by their order."""
    seen: Counter[tuple[object, ...]] = Counter()
    keys: list[tuple[object, ...]] = []
    for item in variables:
        key = (item.kind, item.name, item.shape)
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


def _moved(rank: RankRecord, variables: tuple[VariableRecord, ...], places: Mapping[int, int]) -> RankRecord:
    def moved(values: Mapping[int, Value]) -> dict[int, Value]:
        return {places[index]: value for index, value in values.items()}

    steps = tuple(
        replace(
            step,
            snapshot=moved(step.snapshot),
            own=None if step.own is None else moved(step.own),
            gradients=tuple(replace(gradient, values=moved(gradient.values)) for gradient in step.gradients),
        )
        for step in rank.steps
    )
    return replace(
        rank,
        variables=variables,
        steps=steps,
        final=None if rank.final is None else moved(rank.final),
        resumed={step: moved(values) for step, values in rank.resumed.items()},
    )
