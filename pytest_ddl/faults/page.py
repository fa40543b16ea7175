"""Write the report of faults as one HTML page and as JSON."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from pytest_ddl.faults.report import FaultReport
from pytest_ddl.faults.verdict import Trial
from pytest_ddl.web.look import document
from pytest_ddl.web.units import DASH

_RULES = "td, th { text-align: left; white-space: normal; } td:nth-child(4), td:nth-child(5) { text-align: right; }"
"""Rules of this page: most cells of its table are text."""


def write(report: FaultReport, folder: Path) -> Path:
    """Write ``STRATEGY.html`` and ``STRATEGY.json`` to a folder, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w=.-]+", "-", report.strategy).strip("-")
    (folder / f"{name}.json").write_text(report.to_json(), encoding="utf-8")
    page = folder / f"{name}.html"
    page.write_text(render(report), encoding="utf-8")
    return page


def render(report: FaultReport) -> str:
    """Return the page: the summary, the table of phases and ranks, and a table of all trials."""
    title = f"Faults under {report.strategy}"
    table = escape("\n".join(report.table()))
    rows = "\n".join(_row(trial, report.limits.broken_by(trial)) for trial in report.trials)
    head = "".join(
        f"<th>{name}</th>" for name in ("fault", "verdict", "what it cost", "s to detect", "s to resume", "cause")
    )
    body = (
        f"<header><h1>{escape(title)}</h1></header>\n"
        f'<main><p>{escape(report.headline)}</p><pre class="scroll">{table}</pre>\n'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div></main>'
    )
    return document(title, body, _RULES)


def _row(trial: Trial, broken: str) -> str:
    cells = (
        "; then ".join(map(str, trial.schedule)),
        f"✗ {trial.verdict.value}" if broken else trial.verdict.value,
        broken or trial.message,
        _seconds(trial.detected),
        _seconds(trial.resumed),
        (trial.finding.cause if trial.finding else None) or DASH,
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _seconds(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"
