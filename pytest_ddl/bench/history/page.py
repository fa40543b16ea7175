"""Write the page: one file with data, style and script inside, which opens from disk and needs no server.

This file has the frame of the page and its text sections. The charts of a workload are in ``sections``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pytest_ddl.bench.history.charts import appearance, band, is_share
from pytest_ddl.bench.history.detect import Change, relative_noise
from pytest_ddl.bench.history.meaning import FAMILIES, family, leaf, workload
from pytest_ddl.bench.history.model import History, HistoryProblem, Series, dates
from pytest_ddl.bench.history.report import HistoryReport, causes
from pytest_ddl.bench.history.sections import View, commit_link, scrollable, series_order, series_title, view_section
from pytest_ddl.web.look import look
from pytest_ddl.web.units import percent, quantity, scale

PLACE = Path("scaling") / "index.html"
"""Path of the page in asv's ``html_dir``."""
STATUS_WORDS = {
    "confirmed": "confirmed by a re-run",
    "exact": "counted",
    "unconfirmed": "not confirmed yet",
    "not asked": "not re-run yet",
    "refuted": "refuted by a re-run",
    "explained": "explained",
}
STATE_WORDS = {"changed": "changed", "improved": "improvement", "accepted": "accepted", "recovered": "recovered since"}


def write_page(report: HistoryReport, html: Path) -> Path:
    """Write the page into asv's ``html_dir``, and return its path. The folder is created if it does not exist."""
    path = html / PLACE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(report, asv=(html / "index.html").is_file()), encoding="utf-8")
    return path


def render(report: HistoryReport, *, asv: bool = False) -> str:
    """Return the page as HTML.

    :param asv: true if asv's own pages are in the folder above, so that the page links to them.
    """
    history = report.history
    views = views_of(report)
    days = " to ".join(dict.fromkeys(dates((*history.commits[:1], *history.commits[-1:]))))
    project = history.project or "Training"
    fields = {
        "title": escape(f"{project}: performance history"),
        "project": escape(project),
        "span": escape(f"{_plural(len(history.commits), 'commit')}, {days}"),
        "asv": '<a href="../index.html">All benchmarks in asv</a>' if asv else "",
        "style": look() + _template("page.css"),
        "script": _template("page.js"),
        "notes": notes_section(report),
        "findings": findings_section(report),
        "choices": _choices(views),
        "views": "".join(view_section(view, report) for view in views),
        "machines": machines_section(history),
        "data": as_script(_data(report)),
    }
    return Template(_template("page.html")).substitute(fields)


def _template(name: str) -> str:
    return files("pytest_ddl.bench.history").joinpath("template", name).read_text(encoding="utf-8")


def as_script(data: Any) -> str:
    """Return JSON that can neither end the script element that contains it, nor begin a comment in it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def views_of(report: HistoryReport) -> list[View]:
    """Group the series into views: one workload on one machine in one environment. The newest results come first."""
    grouped: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for one in report.history.series:
        if one.points or one.dropped:
            grouped[one.machine, one.environment, workload(one)].append(one)

    def newest(item: tuple[tuple[str, str, str], list[Series]]) -> tuple[int, tuple[str, str, str]]:
        return (-max(point.commit.position for one in item[1] for point in (*one.points, *one.dropped)), item[0])

    return [View(*key, tuple(series)) for key, series in sorted(grouped.items(), key=newest)]


def _choices(views: list[View]) -> str:
    """Return a field to choose a view. Without scripts, all views are on the page, with a link to each."""
    if len(views) < 2:
        return ""
    options = "".join(f'<option value="{view.id}">{escape(view.title)}</option>' for view in views)
    links = "".join(f'<li><a href="#{view.id}">{escape(view.title)}</a></li>' for view in views)
    return (
        '<div class="choose"><label for="view">Show</label> '
        f'<select id="view">{options}</select></div><nav class="links" aria-label="Views"><ul>{links}</ul></nav>'
    )


def _data(report: HistoryReport) -> dict[str, Any]:
    """Return the data for the page's script and for other programs. Values are in the chart's unit."""
    shown: dict[str, Any] = {}
    for one in report.history.series:
        if not one.points:
            continue
        noise = relative_noise(one)
        by, unit = scale(one.benchmark.unit, max(point.value for point in one.points), share=is_share(one))
        rows = []
        for point in one.points:
            around = band(point, one, noise)
            ends = (
                [round(around.low / by, 6), round(around.high / by, 6), around.meaning] if around else [None, None, ""]
            )
            rows.append([point.commit.position, round(point.value / by, 6), *ends])
        shown[one.id] = {
            "benchmark": one.benchmark.name,
            "parameters": dict(one.parameters),
            "unit": unit,
            "machine": one.machine,
            "environment": one.environment,
            "points": rows,
        }
    among = report.history.commits
    commits = [[one.hash, date, one.subject] for one, date in zip(among, dates(among), strict=True)]
    return {"commits": commits, "url": report.history.commit_url, "series": shown, "report": report.as_json()}


def notes_section(report: HistoryReport) -> str:
    """Return the section on gaps in the history and on skipped work. It comes first, because all else depends on it."""
    problems = report.history.problems
    if not problems and not report.notes:
        return ""
    errors = report.errors
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
            f'<details class="notice"><summary>{_plural(len(others) + len(report.notes), "note")} on this history'
            f"</summary><ul>{items}</ul></details>"
        )
    return "".join(parts)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def _problem(problem: HistoryProblem, *, accepted: bool = False) -> str:
    said = " (accepted)" if accepted else ""
    return f"<li>{escape(problem.message)}{said} <code>{problem.id}</code></li>"


def findings_section(report: HistoryReport) -> str:
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
            f"<details><summary>{_plural(len(causes(rest)), 'other change')}: improvements, "
            f"recovered, refuted, accepted</summary>{_list(rest, report)}</details>"
        )
    return "".join(parts) + "</section>"


def _list(changes: Sequence[Change], report: HistoryReport) -> str:
    return f'<ul class="changes">{"".join(_group(group, report) for group in causes(changes))}</ul>'


def _group(group: Sequence[Change], report: HistoryReport) -> str:
    first = group[0]
    series, history = first.series, report.history
    state, sign = appearance(first, report.accepted)
    said = STATE_WORDS.get(state, STATUS_WORDS[first.verdict.status])
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
    table = scrollable("Machines", f'<table class="machines"><tbody>{rows}</tbody></table>')
    return f'<section aria-labelledby="machines"><h2 id="machines">Machines</h2>{table}</section>'
