"""Results of ``fit``, ``evaluate``, ``predict`` and ``run.value`` as named arrays, paired between two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ddl.records import Array, RankRecord

_KINDS = ("fit", "evaluate", "predict", "value")


@dataclass(frozen=True)
class Returned:
    """One array from the result of a call."""

    name: str
    """``evaluate[0]``, ``fit/loss``, ``predict#2`` …"""
    kind: str
    """``fit``, ``evaluate``, ``predict``, or ``value`` for ``run.value``."""
    step: int
    """Number of steps completed before the call returned."""
    value: Array


def returned(rank: RankRecord) -> dict[tuple[str, int, str], Returned]:
    """Return all arrays that a rank's calls returned, by the key that pairs them with those of another run.

    Calls are paired by kind, by the step that they follow, and by their order there. The reason is that an interrupted
    run lacks the calls of its first attempt.
    """
    results: dict[tuple[str, int, str], Returned] = {}
    order: dict[tuple[str, int], int] = {}
    for name, value in rank.results.items():
        kind = name.split("#")[0]
        if kind not in _KINDS:
            continue
        step = rank.result_steps.get(name, rank.num_steps)
        number = order[kind, step] = order.get((kind, step), 0) + 1
        for path, array in _arrays(value, kind):
            results[kind, step, f"{number}{path}"] = Returned(f"{name}{path}", kind, step, array)
    return results


def _arrays(value: Any, kind: str, path: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the numeric leaves of nested dicts and lists. A list of numbers in a history is one array."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(item, kind, f"{path}/{key}")
    elif isinstance(value, list | tuple) and not (kind == "fit" and all(isinstance(v, int | float) for v in value)):
        for position, item in enumerate(value):
            yield from _arrays(item, kind, f"{path}[{position}]")
    else:
        array = np.asarray(value)
        if array.dtype.kind in "biufc" and array.size:
            yield path, array
