"""Put the numbers of new cells among those of the page, whose other cells stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suites.coverage import LETTERS
from suites.matrix.cells import Cell
from suites.matrix.numbers import NONE, NOT_RUN, Numbers, codes_of


def merged(old: Numbers, new: Numbers, cells: Sequence[Cell]) -> Numbers:
    """Return the numbers of both. A cell that is in both has the new ones.

    :param cells: all cells, which gives their order.
    """
    of_cell = {cell["id"]: cell for numbers in (old, new) for cell in numbers["cells"] if cell["outcome"] != "not run"}
    every = {cell["id"]: cell for numbers in (old, new) for cell in numbers["cells"]} | of_cell
    order = [cell.id for cell in cells]
    shown = sorted(every.values(), key=lambda cell: order.index(cell["id"]) if cell["id"] in order else len(order))
    ran = [cell["id"] for cell in shown if cell.get("ran")]
    replaced = [cell["id"] for cell in new["cells"] if cell.get("ran")]
    return {
        "cells": shown,
        "items": _items(old, new, ran, replaced),
        "failures": _failures(old["failures"], new["failures"], replaced),
        "compared": new["compared"],
        "changes": new["changes"],
        "nightly": [
            *(one for one in old.get("nightly", ()) if one["cell"] not in replaced),
            *new["nightly"],
        ],
    }


def _items(old: Numbers, new: Numbers, ran: Sequence[str], replaced: Sequence[str]) -> dict[str, str]:
    found: dict[str, dict[str, dict[str, str]]] = {}
    for numbers in (old, new):
        ids = [cell["id"] for cell in numbers["cells"] if cell.get("ran")]
        for item, text in numbers["items"].items():
            for letter, codes in codes_of(text).items():
                here = found.setdefault(item, {}).setdefault(letter, {})
                here.update(
                    {
                        cell: code
                        for cell, code in zip(ids, codes, strict=True)
                        if numbers is new or cell not in replaced
                    }
                )
    order = "".join([*LETTERS.values(), NONE])
    return {
        item: " ".join(
            f"{letter}:{''.join(letters[letter].get(cell, NOT_RUN) for cell in ran)}"
            for letter in sorted(letters, key=order.index)
        )
        for item, letters in sorted(found.items())
    }


def _failures(old: Sequence[Numbers], new: Sequence[Numbers], replaced: Sequence[str]) -> list[Numbers]:
    rows: dict[tuple[str, str, str], Numbers] = {}
    for row in old:
        kept = {name: [cell for cell in row[name] if cell not in replaced] for name in ("bad", "good")}
        if kept["bad"]:
            rows[_group(row)] = {**row, **kept}
    for row in new:
        before: Mapping[str, Sequence[str] | str] = rows.get(_group(row), {"bad": [], "good": [], "strategies": ""})
        rows[_group(row)] = {
            **row,
            **{name: [*before[name], *row[name]] for name in ("bad", "good")},
            "strategies": "".join(sorted({*before["strategies"], *row["strategies"]})),
        }
    return [rows[group] for group in sorted(rows)]


def _group(row: Numbers) -> tuple[str, str, str]:
    return row["kind"], row["test"], row["reason"] if row["kind"] == "xfail" else ""
