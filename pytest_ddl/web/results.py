"""Write a measured result: tables as Markdown, and one HTML page with its drawings and tables."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pytest_ddl.web.look import document

NONE = "-"
"""Text of a cell without a value."""
# Drawings have dark ink, so they keep their white paper in dark mode.
_RULES = """
.lead { font-size: 17px; }
figure { margin: 24px 0; overflow-x: auto; } figure img { width: 100%; min-width: 40rem; background: #fff; }
th, td { text-align: left; white-space: normal; }
"""


@dataclass(frozen=True)
class Table:
    """Heading and rows of text; the first row names the columns."""

    title: str
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the heading and the table in Markdown."""
        head, *rest = self.rows
        lines = [head, ("---",) * len(head), *rest]
        return f"## {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def html(self) -> str:
        """Return the heading and the table in HTML. Text between backticks becomes code."""
        head, *rest = self.rows
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        rows = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>\n" for row in rest)
        table = f"<table><thead><tr>{top}</tr></thead>\n{rows}</table>"
        return f'<h2>{escape(self.title)}</h2>\n<div class="scroll">{table}</div>'


def markdown(title: str, lead: str, notes: Sequence[str], tables: Sequence[Table]) -> str:
    """Return a result as Markdown: the title, the result in one sentence, its limits and its tables."""
    parts = [f"# {title}", f"{lead}.", *(f"> {note}" for note in notes)]
    return "\n\n".join([*parts, *(table.markdown().rstrip() for table in tables)]) + "\n"


def page(
    title: str, lead: str, notes: Sequence[str], drawings: Sequence[Path], tables: Sequence[Table], more: str = ""
) -> str:
    """Return a result as one HTML page, which loads nothing.

    :param lead: the result in one sentence, without its full stop.
    :param notes: limits of the result.
    :param drawings: SVG files.
    :param more: HTML after the tables.
    """
    parts = [f'<p class="lead">{escape(lead)}.</p>']
    parts += [f'<p class="notice serious">{escape(note)}</p>' for note in notes]
    # As images, so that neither ids nor styles of one drawing reach another.
    parts += [f"<figure>{_image(path)}</figure>" for path in drawings]
    parts += [table.html() for table in tables]
    body = f"<header><h1>{escape(title)}</h1></header>\n<main>\n" + "\n".join([*parts, more]) + "</main>"
    return document(title, body, _RULES)


def _image(path: Path) -> str:
    content = b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(path.stem, quote=True)}" src="data:image/svg+xml;base64,{content}">'


def _cell(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
