"""Write the page: one file with data, style and script inside, which opens from disk and needs no server."""

from __future__ import annotations

import json
from collections import defaultdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pytest_ddl.bench.history.charts import band, is_share
from pytest_ddl.bench.history.detect import relative_noise
from pytest_ddl.bench.history.findings import findings_section, machines_section, notes_section
from pytest_ddl.bench.history.meaning import workload
from pytest_ddl.bench.history.model import Series
from pytest_ddl.bench.history.report import Report
from pytest_ddl.bench.history.sections import View, view_section
from pytest_ddl.web.look import look
from pytest_ddl.web.units import scale

PLACE = Path("scaling") / "index.html"
"""Path of the page in asv's ``html_dir``."""


def write_page(report: Report, html: Path) -> Path:
    """Write the page into asv's ``html_dir``, and return its path. The folder is created if it does not exist."""
    path = html / PLACE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(report, asv=(html / "index.html").is_file()), encoding="utf-8")
    return path


def render(report: Report, *, asv: bool = False) -> str:
    """Return the page as HTML.

    :param asv: true if asv's own pages are in the folder above, so that the page links to them.
    """
    history = report.history
    views = views_of(report)
    days = f"{history.commits[0].day} to {history.commits[-1].day}" if len(history.commits) > 1 else ""
    days = days or "".join(commit.day for commit in history.commits)
    count = f"{len(history.commits)} commit{'s' if len(history.commits) != 1 else ''}"
    project = history.project or "Training"
    fields = {
        "title": escape(f"{project}: performance history"),
        "project": escape(project),
        "span": escape(f"{count}, {days}"),
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


def views_of(report: Report) -> list[View]:
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


def _data(report: Report) -> dict[str, Any]:
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
    commits = [[one.hash, one.day, one.subject] for one in report.history.commits]
    return {"commits": commits, "url": report.history.commit_url, "series": shown, "report": report.as_json()}
