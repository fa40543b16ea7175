"""Picture of all variables on all replicas at one step: how far each value is from one device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.distances import Distance, Distances, at_step, bounds_of
from pytest_ddl.pages.picture import Picture
from pytest_ddl.records import TrainingRecord, VariableRecord
from pytest_ddl.web.units import shown

TITLE = "Variables and replicas"
MOST_ROWS = 40
_EDGES = (1e3, 1e6, 1e9)
"""Distances, in units of the bound, from which a cell has a stronger color."""


def heat_map(report: Report, found: Distances) -> Picture:
    """Draw the step in which the first difference appears, or the last one. The worst variables come first."""
    reference, distributed = report.reference, report.distributed
    if found.reason:
        return Picture("replicas", TITLE, absent=found.reason)
    step = _step(report, found)
    bounds = bounds_of(report)
    rows = []
    for track in found.tracks[:MOST_ROWS]:
        cells = list(at_step(reference, distributed, bounds, track.variable, step))
        if cells:
            rows.append((track.variable, cells))
    when = f"after step {step}" if step else "before the first step"
    if not rows:
        return Picture("replicas", TITLE, absent=f"no variable has a value {when}")
    left_out = len(found.tracks) - len(rows)
    more = f" The {left_out} variables with smaller differences are left out." if left_out > 0 else ""
    return Picture(
        "replicas",
        TITLE,
        _table(rows, distributed, when),
        about=(
            f"How far the value of each replica is from one device {when}: a number is the difference divided by its "
            "bound, ✓ is within the bound, and = is equal in every bit. One column is wrong if a replica is, and one "
            f"row if a variable is.{more}"
        ),
    )


def _step(report: Report, found: Distances) -> int:
    if found.first_wrong is not None:
        return found.first_wrong
    named = next((finding.step for finding in report.findings if finding.variable and finding.step is not None), None)
    return found.steps[-1] if named is None else min(named, found.steps[-1])


def _table(rows: Sequence[tuple[VariableRecord, list[Distance]]], distributed: TrainingRecord, when: str) -> str:
    places = sorted({(one.rank, one.replica) for _variable, cells in rows for one in cells})
    several = len(distributed.ranks) > 1
    tasks = {rank.rank: rank.task for rank in distributed.ranks}
    head = "".join(
        f'<th scope="col">replica {replica}{f"<small>{escape(tasks[rank])}</small>" if several else ""}</th>'
        for rank, replica in places
    )
    body = "".join(_row(variable, cells, places) for variable, cells in rows)
    return (
        f'<div class="scroll"><table class="heat"><caption class="unseen">Distance from one device {when}, in units of '
        f"the bound</caption>"
        f'<thead><tr><th scope="col">variable</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(variable: VariableRecord, cells: Sequence[Distance], places: Sequence[tuple[int, int]]) -> str:
    by_place = {(one.rank, one.replica): one for one in cells}
    shared = len(cells) == 1 and len(places) > 1
    name = f'<th scope="row">{escape(variable.name)} <small>{escape(variable.kind.value)}</small></th>'
    if shared:
        return f"<tr>{name}{_cell(cells[0], len(places))}</tr>"
    return f"<tr>{name}{''.join(_cell(by_place.get(place)) for place in places)}</tr>"


def _cell(one: Distance | None, columns: int = 1) -> str:
    if one is None:
        return "<td></td>"
    span = f' colspan="{columns}"' if columns > 1 else ""
    tip = f"difference {shown(one.error)}, bound {shown(one.bound)}"
    word = " (one value for all replicas)" if columns > 1 else ""
    return f'<td class="{_heat(one.excess)}" title="{tip}"{span}>{_text(one.excess)}{word}</td>'


def _text(excess: float) -> str:
    if excess == 0:
        return "="
    return "✓" if excess <= 1 else "∞" if math.isinf(excess) else shown(excess, 2)


def _heat(excess: float) -> str:
    if excess <= 1:
        return "equal" if excess == 0 else "agrees"
    return f"hot{sum(excess >= edge for edge in _EDGES)}"
