"""Write the folder of a study: results as JSON, the tables, the pictures, and a page that contains everything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.web import results
from pytest_ddl.web.drawing import save
from pytest_ddl.web.results import Table


@dataclass(frozen=True)
class Origin:
    """Command and time that gave the results of a study, with notes on the machine."""

    command: str
    started: str
    """Time of the start, in UTC."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """Results of a study."""

    study: str
    """Name in the registry."""
    title: str
    headline: str
    """Result in one sentence, with its uncertainty."""
    tables: tuple[Table, ...]
    figures: Mapping[str, Callable[[Any], None]]
    """Name of a file without its ending -> function that draws into a figure of matplotlib."""
    data: Mapping[str, Any]
    """All samples and what follows from them, as plain data for JSON."""
    notes: tuple[str, ...] = ()
    """Limits of the results."""
    problem: str = ""
    """Why the exit status is 1: a result that is wrong. Empty if everything is right."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the measurement in words, for the last table."""


def markdown(report: Report, origin: Origin) -> str:
    """Return the whole report in Markdown."""
    notes = (*origin.notes, *report.notes)
    return results.markdown(report.title, report.headline, notes, _tables(report, origin))


def write(report: Report, origin: Origin, folder: Path) -> list[Path]:
    """Write all files and return their paths. The folder is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {
        "study": report.study,
        "headline": report.headline,
        "command": origin.command,
        "started": origin.started,
        "notes": [*origin.notes, *report.notes],
        "problem": report.problem,
        "settings": dict(report.settings),
        "machine": machine_facts(),
        **report.data,
    }
    texts = {
        # Written first, because the other files can be made from it.
        "results.json": json.dumps(plain, indent=1, ensure_ascii=False) + "\n",
        "table.md": markdown(report, origin),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    drawn = []
    for name, draw in report.figures.items():
        path = folder / f"{name}.svg"
        save(draw, path)
        drawn.append(path)
    index = folder / "index.html"
    notes = (*origin.notes, *report.notes)
    index.write_text(results.page(report.title, report.headline, notes, drawn, _tables(report, origin)), "utf-8")
    return [*(folder / name for name in texts), *drawn, index]


def _tables(report: Report, origin: Origin) -> list[Table]:
    facts = machine_facts()
    rows = [
        ("", ""),
        *report.settings.items(),
        ("machine", f"{facts['cores']} cores of {facts['cpu']}" + (f", {facts['gpu']}" if facts.get("gpu") else "")),
        ("command", f"`{origin.command}`"),
        ("started", origin.started),
    ]
    return [*report.tables, Table("How it was measured", tuple(rows))]
