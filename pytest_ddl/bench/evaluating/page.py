"""Write the folder of an evaluation: the pictures, the tables, and a page that contains everything."""

from __future__ import annotations

import html
from pathlib import Path

from pytest_ddl.bench.evaluating import pictures, table
from pytest_ddl.bench.evaluating.table import EvaluationSummary
from pytest_ddl.web import results

INDEX = "index.html"


def write(summary: EvaluationSummary, folder: Path) -> list[Path]:
    """Write all files but the results, which are there already, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pictures.draw(summary, folder)
    texts = {"table.md": table.markdown(summary), INDEX: page(summary, made)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*made, *(folder / name for name in texts)]


def page(summary: EvaluationSummary, drawings: list[Path]) -> str:
    """Return one HTML page that contains the pictures. It opens from disk and loads nothing."""
    title, notes = table.title_of(summary.evaluation), table.warnings_of(summary)
    return results.page(title, summary.headline, notes, drawings, table.tables(summary), _reports(summary))


def _reports(summary: EvaluationSummary) -> str:
    """Return the whole report of each comparison that did not pass."""
    parts = [
        f"<details><summary>{html.escape(name)}: {html.escape(one.verdict)}</summary>"
        f"<pre>{html.escape(one.report)}</pre></details>"
        for name, one in summary.evaluation.verdicts.items()
        if one.report
    ]
    return "\n".join(["<h2>Reports of comparisons that did not pass</h2>", *parts, ""]) if parts else ""
