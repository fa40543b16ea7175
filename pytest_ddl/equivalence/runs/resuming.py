"""Join two attempts of one rank into one record: an interrupted attempt and the one that continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from pytest_ddl.records import RankRecord, Snapshot, VariableRecord
from pytest_ddl.run_facts import CallSite, RunFacts

Value = TypeVar("Value")


def joined(first: RankRecord, second: RankRecord, step: int) -> RankRecord:
    """Return one record with the steps of both attempts.

    :param first: an attempt, or several joined ones, interrupted after ``step``.
    """
    facts = _facts(first, second)
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
        facts=facts,
    )


_LISTS = ("own_strategies", "unmatched_layout_rules", "unwatched", "unseeded", "shards", "parts")
_BY_KEY = ("draws_unseen", "generators", "overwritten", "rewritten", "meanwhile", "fitted")
_EITHER = ("tf_config", "device", "not_deterministic", "drew_unseen", "data_of_workers", "trains_on_batches")
"""Facts of either attempt that hold for both together. The others say how a run began or ended: those of the last."""


def _facts(first: RankRecord, second: RankRecord) -> RunFacts:
    """Return the facts of both attempts. What one of them left open stays open, whatever the other did."""
    ours, theirs = cast("dict[str, Any]", first.facts), cast("dict[str, Any]", second.facts)
    both: dict[str, Any] = {}
    for name in _LISTS:
        found = [one for facts in (ours, theirs) for one in facts.get(name, ())]
        both[name] = [one for at, one in enumerate(found) if one not in found[:at]]
    for name in _BY_KEY:
        both[name] = {**ours.get(name, {}), **theirs.get(name, {})}
    for name in _EITHER:
        both[name] = ours.get(name) or theirs.get(name)
    sites: dict[CallSite, bool] = {}
    for facts in (ours, theirs):
        for site, ran in facts.get("call_sites", {}).items():
            # A loop that ran before the interruption need not run after it.
            sites[site] = sites.get(site, False) or ran
    both["call_sites"] = sites
    return cast("RunFacts", {**theirs, **{name: fact for name, fact in both.items() if fact}})


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
