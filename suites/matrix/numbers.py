"""The numbers of the page, in compact form: items by cell and strategy, failures by version, and what changed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from suites.coverage import LETTERS
from suites.matrix import nightly
from suites.matrix.cells import Cell
from suites.matrix.environments import ROOT
from suites.matrix.results import Outcome, Result, split

FILE = ROOT / "docs" / "matrix.json"
Numbers = dict[str, Any]
CODES: Mapping[str, str] = {"pass": "p", "xfail": "x", "fail": "F", "skip": "s"}
"""Outcome -> letter in the numbers. The worst outcome of an item's tests is that of the item."""
NOT_RUN = "."
_WORST = ("fail", "xfail", "pass", "skip")
NONE = "-"
"""Letter of tests without a strategy."""
_SHOWN = ("python", "numpy", "pytest")


def numbers(results: Sequence[Result], before: Sequence[Result] = (), cells: Sequence[Cell] = ()) -> Numbers:
    """Return the numbers of some results.

    :param before: older results of the same cells.
    :param cells: all cells; those without a result are shown as not run.
    """
    ran = {result.cell.id: result for result in results}
    every = sorted({*cells, *(result.cell for result in results)}, key=lambda cell: cell.order)
    return {
        "cells": [_cell(cell, ran.get(cell.id)) for cell in every],
        "items": _items([result for result in results if result.tests]),
        "failures": _failures([result for result in results if result.tests]),
        "compared": sorted({old.cell.id for old in before} & set(ran)),
        "changes": changes(before, results),
        "nightly": nightly.compared(results),
    }


def _cell(cell: Cell, result: Result | None) -> Numbers:
    told: Numbers = {
        "id": cell.id,
        "name": str(cell),
        "tensorflow": cell.tensorflow,
        "keras": cell.keras,
        "subject": cell.subject,
        "oldest": cell.oldest,
        "nightly": cell.nightly,
        **({"device": cell.device} if cell.device else {}),
    }
    if result is None:
        return {**told, "outcome": "not run"}
    ran = cell.at(result.versions)
    return {
        **told,
        "name": str(ran if cell.nightly else cell),
        "tensorflow": ran.tensorflow,
        "keras": ran.keras,
        "tier": result.tier,
        "outcome": result.outcome,
        "reason": result.reason,
        "ran": bool(result.tests),
        "versions": {name: result.versions[name] for name in _SHOWN if name in result.versions},
        "counts": result.counts,
        "seconds": dict(result.seconds),
    }


def _items(results: Sequence[Result]) -> dict[str, str]:
    """Return item -> for each strategy its letter and one code for each cell that ran, for example ``M:pp. W:px.``."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for position, result in enumerate(results):
        outcomes = defaultdict(set)
        for test in result.tests:
            for item, strategy in test.items:
                outcomes[item, _letter(strategy)].add(test.outcome)
        for (item, letter), here in outcomes.items():
            codes = found[item].setdefault(letter, [NOT_RUN] * len(results))
            codes[position] = CODES[next(outcome for outcome in _WORST if outcome in here)]
    order = "".join([*LETTERS.values(), NONE])
    return {
        item: " ".join(f"{letter}:{''.join(codes[letter])}" for letter in sorted(codes, key=order.index))
        for item, codes in sorted(found.items())
    }


def _letter(strategy: str) -> str:
    return LETTERS.get(strategy, NONE)


def _failures(results: Sequence[Result]) -> list[Numbers]:
    """Return the tests that fail in a cell, known or not, with the cells in which they fail and in which they pass."""
    groups: dict[tuple[str, str, str], set[tuple[str, str]]] = defaultdict(set)
    reasons: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        for test in result.tests:
            if test.outcome in ("fail", "xfail"):
                # Failures that nobody knows have messages with numbers, so that they are one for each test.
                group = test.outcome, test.function, test.reason if test.outcome == "xfail" else ""
                groups[group].add(test.key)
                reasons[group][test.reason] += 1
    rows = []
    for group, keys in sorted(groups.items()):
        kind, function, _reason = group
        reason = reasons[group].most_common(1)[0][0]
        said, place = split(reason)
        of_cell = [(result.cell.id, [test for test in result.tests if test.key in keys]) for result in results]
        bad = [cell for cell, tests in of_cell if any(_is(test, group) for test in tests)]
        good = [cell for cell, tests in of_cell if tests and all(test.outcome == "pass" for test in tests)]
        strategies = {test.strategy for _cell, tests in of_cell for test in tests if _is(test, group)}
        rows.append(
            {
                "test": function,
                "kind": kind,
                "strategies": "".join(sorted(map(_letter, strategies))),
                "reason": said,
                "place": place,
                "bad": bad,
                "good": good,
            }
        )
    return rows


def _is(test: Outcome, group: tuple[str, str, str]) -> bool:
    kind, function, reason = group
    return (test.outcome, test.function) == (kind, function) and (kind == "fail" or test.reason == reason)


def changes(before: Iterable[Result], after: Iterable[Result]) -> list[Numbers]:
    """Return the tests whose outcome in a cell is another one than before, by test, cell and outcomes."""
    old = {result.cell.id: {test.key: test.outcome for test in result.tests} for result in before if result.tests}
    groups: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    number: Counter[tuple[str, str, str, str]] = Counter()
    for result in after:
        known = old.get(result.cell.id)
        if known is None or not result.tests:
            continue
        now = {test.key: test for test in result.tests}
        for key in {*known, *now}:
            was, new = known.get(key, "not there"), now[key].outcome if key in now else "not there"
            # A test that is new and passes is no news.
            if was != new and {was, new} != {"not there", "pass"} and "skip" not in (was, new):
                group = result.cell.id, key[0].partition("[")[0], was, new
                groups[group].add(_letter(key[1].partition("[")[0]))
                number[group] += 1
    return [
        {"cell": cell, "test": test, "before": was, "after": new, "strategies": "".join(sorted(groups[group]))}
        | {"number": number[group]}
        for group in sorted(groups)
        for cell, test, was, new in [group]
    ]


def codes_of(text: str) -> dict[str, str]:
    """Return strategy's letter -> codes of an item, from the text that the numbers have."""
    return {part[0]: part[2:] for part in text.split()}


def write(given: Numbers, path: Path = FILE) -> None:
    """Write the numbers, with a line for each item, cell, failure and change, so that a diff is readable."""
    parts = []
    for name, value in given.items():
        if isinstance(value, dict):
            lines = [f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()]
        else:
            lines = [f"  {json.dumps(one, sort_keys=True)}" for one in value]
        opened, closed = "{}" if isinstance(value, dict) else "[]"
        body = ",\n".join(lines)
        parts.append(
            f"{json.dumps(name)}: {opened}\n{body}\n{closed}" if lines else f"{json.dumps(name)}: {opened}{closed}"
        )
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def read(path: Path = FILE) -> Numbers:
    """Return the numbers that are in a file."""
    found: Numbers = json.loads(path.read_text(encoding="utf-8"))
    return found
