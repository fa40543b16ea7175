"""Write the text sections of the page: regressions, candidates, gaps in the history, and the machines."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pytest_ddl.bench.history.charts import appearance, is_share
from pytest_ddl.bench.history.detect import Change
from pytest_ddl.bench.history.meaning import FAMILIES, family, leaf, workload
from pytest_ddl.bench.history.model import History, Problem
from pytest_ddl.bench.history.report import Report, causes
from pytest_ddl.bench.history.sections import commit_link, series_order, series_title
from pytest_ddl.web.units import percent, quantity

WORDS = {
    "confirmed": "confirmed by a re-run",
    "exact": "counted",
    "unconfirmed": "not confirmed yet",
    "not asked": "not re-run yet",
    "refuted": "refuted by a re-run",
    "explained": "explained",
}

OTHERS = {"changed": "changed", "improved": "improvement", "accepted": "accepted", "recovered": "recovered since"}


def notes_section(report: Report) -> str:
    """Return the section on gaps in the history and on skipped work. It comes first, because all else depends on it."""
    problems = report.history.problems
    if not problems and not report.notes:
        return ""
    errors = [one for one in problems if one.error and one.id not in report.accepted]
    others = [one for one in problems if one not in errors]
    parts = []
    if errors:
        items = "".join(_problem(one) for one in errors)
        parts.append(
            '<section class="notice serious" aria-labelledby="incomplete"><h2 id="incomplete">'
            f'<span aria-hidden="true">!</span> This history is incomplete</h2><ul>{items}</ul></section>'
        )
    if others or report.notes:
        items = "".join(_problem(one, accepted=one.id in report.accepted) for one in others)
        items += "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        parts.append(
            f'<details class="notice"><summary>{_count(others, report.notes)}</summary><ul>{items}</ul></details>'
        )
    return "".join(parts)


def _count(problems: Sequence[Problem], notes: Sequence[str]) -> str:
    total = len(problems) + len(notes)
    return f"{total} note{'s' if total != 1 else ''} on this history"


def _problem(problem: Problem, *, accepted: bool = False) -> str:
    said = " (accepted)" if accepted else ""
    return f"<li>{escape(problem.message)}{said} <code>{problem.id}</code></li>"


def findings_section(report: Report) -> str:
    regressions, candidates = report.regressions, report.candidates
    listed = {one.id for one in (*regressions, *candidates)}
    rest = [one for one in report.changes if one.id not in listed]
    heading = "No confirmed regression" if not regressions else f"Regressions ({len(causes(regressions))})"
    parts = [f'<section class="findings" aria-labelledby="findings"><h2 id="findings">{heading}</h2>']
    if regressions:
        parts.append(_list(regressions, report))
    if candidates:
        parts.append(
            f'<h3>To be confirmed ({len(causes(candidates))})</h3><p class="about">The results seem to change here. '
            "A change is reported as a regression only after a re-run of both commits side by side confirms it.</p>"
            f"{_list(candidates, report)}"
        )
    if rest:
        parts.append(
            f"<details><summary>{len(causes(rest))} other change{'s' if len(causes(rest)) != 1 else ''}: improvements, "
            f"recovered, refuted, accepted</summary>{_list(rest, report)}</details>"
        )
    return "".join(parts) + "</section>"


def _list(changes: Sequence[Change], report: Report) -> str:
    return f'<ul class="changes">{"".join(_group(group, report) for group in causes(changes))}</ul>'


def _group(group: Sequence[Change], report: Report) -> str:
    first = group[0]
    series, history = first.series, report.history
    state, sign = appearance(first, report.accepted)
    said = OTHERS.get(state, WORDS[first.verdict.status])
    range_ = f"after {commit_link(first.before, history)}, by {commit_link(first.after, history)}"
    if first.kind == "creep":
        range_ = f"gradually from {commit_link(first.before, history)} to {commit_link(first.after, history)}"
    elif first.likely != first.after:
        range_ += f", most likely {commit_link(first.likely, history)}"
    variants: dict[str, list[Change]] = {}
    for one in sorted(group, key=lambda one: series_order(one.series)[1:]):
        variants.setdefault(series_title(one.series), []).append(one)
    sizes = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{_sizes(several)}</dd></div>" for title, several in variants.items()
    )
    message = f'<p class="why">{escape(first.verdict.message)}</p>' if first.verdict.message else ""
    return (
        f'<li class="{state}"><p class="what"><span class="badge {state}">{sign} {said}</span> '
        f"<b>{escape(workload(series))}</b> on {escape(series.machine)}</p>"
        f'<dl class="sizes-of">{sizes}</dl><p class="range">{range_}</p>{message}</li>'
    )


def _sizes(changes: Sequence[Change]) -> str:
    """Return the changes of one variant: the main metric with its levels, the others only with their size."""
    order = {name: index for index, name in enumerate(("step", *(one.name for one in FAMILIES if one.name != "step")))}
    first, *others = sorted(changes, key=lambda one: order.get(family(one.series.benchmark).name, len(order)))
    unit, share = first.series.benchmark.unit, is_share(first.series)
    levels = f"{quantity(first.old, unit, share=share)} → {quantity(first.new, unit, share=share)}"
    also = ", ".join(_size(one) for one in others)
    return f"{_size(first)} <small>{escape(levels)}</small>{f'<small>{also}</small>' if also else ''}"


def _size(change: Change) -> str:
    name = escape(leaf(change.series.benchmark).replace("_", " "))
    spread = f" ±{abs(change.spread) * 100:.1f}" if change.spread else ""
    size = percent(change.effect).replace("\u202f%", f"{spread}\u202f%")
    return f'<span title="{change.id}">{name} <b>{size}</b></span>'


def machines_section(history: History) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>'
        + ", ".join(f"{escape(key)}: {escape(value)}" for key, value in machine.facts.items())
        + "</td></tr>"
        for name, machine in history.machines.items()
    )
    return (
        '<section aria-labelledby="machines"><h2 id="machines">Machines</h2><div class="scroll" tabindex="0" '
        f'role="region" aria-label="Machines"><table class="machines"><tbody>{rows}</tbody></table></div></section>'
    )
