"""Merge the counters of all ranks into one record: a synchronous step waits for the rank that does the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from pytest_ddl.bench.records import Counters

_TOLD = ("notes", "uncounted")


def of_all_ranks(counters: Sequence[Counters]) -> Counters:
    """Return the largest value of each counter over the ranks, with a note that names the counters that differ.

    For ``steady_steps``, it is the smallest value. For ``misplaced``, it is the longest tuple. ``copies`` is ``None``
    if no rank counted them.

    :param counters: counters of each rank, at least one.
    """
    values = {item.name: [getattr(one, item.name) for one in counters] for item in fields(Counters)}
    merged = {name: _one_of(name, found) for name, found in values.items()}
    differ = [name for name, found in values.items() if name not in _TOLD and any(one != found[0] for one in found)]
    if differ:
        shown = "; ".join(f"{name} {', '.join(str(one) for one in values[name])}" for name in differ)
        merged["notes"] = (*merged["notes"], f"ranks differ, and the largest is compared: {shown}")
    return Counters(**merged)


def _one_of(name: str, found: list[Any]) -> Any:
    if name in _TOLD:
        return tuple(dict.fromkeys(line for lines in found for line in lines))
    if name == "steady_steps":
        return min(found)
    if name == "misplaced":
        return max(found, key=len)
    counted = [one for one in found if one is not None]
    if counted and isinstance(counted[0], Mapping):
        keys = dict.fromkeys(key for one in counted for key in one)
        return {key: max(one.get(key, 0) for one in counted) for key in keys}
    return max(counted, default=None)
