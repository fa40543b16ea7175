"""Write the folder of an experiment: results as JSON, the tables, the plots, and one self-contained page."""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_ddl.bench.experiment import numbers, plots, table
from pytest_ddl.bench.experiment.results import Experiment

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #24292f; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.lead { font-size: 1.1rem; }
.note { border-left: 4px solid #D55E00; background: #fff4ed; padding: .6rem 1rem; }
figure { margin: 1.5rem 0; overflow-x: auto; } figure svg { width: 100%; min-width: 40rem; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid #e5e7eb; }
td { font-variant-numeric: tabular-nums; } td:first-child { color: #57606a; min-width: 11rem; }
code { background: #f3f4f6; padding: .1rem .3rem; border-radius: 3px; }
"""


def write(experiment: Experiment, folder: Path) -> list[Path]:
    """Write all files and return their paths. The folder is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        # Written first, because the other files can be made from it.
        "results.json": json.dumps(as_json(experiment), indent=1, ensure_ascii=False) + "\n",
        "table.md": table.markdown(experiment),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    made = plots.draw(experiment, folder)
    drawings = [path.read_text(encoding="utf-8") for path in made if path.suffix == ".svg"]
    index = folder / "index.html"
    index.write_text(page(experiment, drawings), encoding="utf-8")
    return [*(folder / name for name in texts), index, *made]


def as_json(experiment: Experiment) -> dict[str, Any]:
    """Return all measurements, including every epoch of every rank, and the numbers derived from them."""
    found = {name: _scaling(item) for name, item in table.scaling_of(experiment).items()}
    judged = numbers.agreement(experiment)
    derived = {"scaling": found, "agreement": {**asdict(judged), "passed": judged.passed}}
    trainings = [training.as_json() for training in experiment.trainings]
    return {**asdict(experiment), "trainings": trainings, "derived": derived}


def _scaling(item: numbers.Scaling | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        **asdict(item),
        "speed_up": item.speed_up,
        "overhead": item.overhead,
        "serial_fraction": item.serial_fraction,
    }


def page(experiment: Experiment, figures: list[str]) -> str:
    """Return one HTML page that contains the plots. It opens from disk and loads nothing."""
    lead = table.headline(experiment)
    parts = [f"<h1>{html.escape(table.TITLE)}</h1>", f'<p class="lead">{html.escape(lead[0].upper() + lead[1:])}.</p>']
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in experiment.notes]
    # Each drawing gets its own prefix, because references must not find ids of another drawing.
    parts += [f"<figure>{_inline(svg, f'f{number}-')}</figure>" for number, svg in enumerate(figures)]
    parts += [_html(item) for item in table.tables(experiment)]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = f"<title>{html.escape(table.TITLE)}</title>"
    top = f'<!doctype html>\n<html lang="en"><head>{head}{title}<style>{STYLE}</style></head>'
    return "\n".join([top, "<body>", *parts, "</body></html>", ""])


def _inline(svg: str, prefix: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}", svg)


def _html(item: table.Table) -> str:
    head, *rest = item.rows
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    rows = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>\n" for row in rest)
    return f'<h2>{html.escape(item.title)}</h2>\n<div class="wide"><table><tr>{top}</tr>\n{rows}</table></div>'


def _cell(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
