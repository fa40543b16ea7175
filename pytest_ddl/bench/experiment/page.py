"""Write the folder of an experiment: results as JSON, the tables, the plots, and a page that contains everything."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_ddl.bench.experiment import table
from pytest_ddl.bench.experiment.results import PUBLISHED, Experiment, Scaling, Training

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
SINGLE, MANY, ALL, STEADY = "#0072B2", "#D55E00", "#009E73", "#56B4E9"
"""Colors of Okabe and Ito, which color-blind readers can distinguish."""
GREY, INK = "#8a8f98", "#24292f"
PLOT_STYLE = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    # A fixed salt, so that the same data give the same file.
    "svg.hashsalt": "pytest-ddl",
}


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
    made = draw(experiment, folder)
    drawings = [path.read_text(encoding="utf-8") for path in made if path.suffix == ".svg"]
    index = folder / "index.html"
    index.write_text(page(experiment, drawings), encoding="utf-8")
    return [*(folder / name for name in texts), index, *made]


def as_json(experiment: Experiment) -> dict[str, Any]:
    """Return all measurements, including every epoch of every rank, and the numbers derived from them."""
    found = {name: _scaling(item) for name, item in experiment.scalings.items()}
    judged = experiment.agreement
    derived = {"scaling": found, "agreement": {**asdict(judged), "passed": judged.passed}}
    trainings = [training.as_json() for training in experiment.trainings]
    return {**asdict(experiment), "trainings": trainings, "derived": derived}


def _scaling(item: Scaling | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {**asdict(item), **{name: getattr(item, name) for name in ("speed_up", "overhead", "serial_fraction")}}


def page(experiment: Experiment, figures: list[str]) -> str:
    """Return one HTML page that contains the plots. It opens from disk and loads nothing."""
    return document(table.TITLE, table.headline(experiment), experiment.notes, figures, table.tables(experiment))


def document(title: str, lead: str, notes: Sequence[str], figures: Sequence[str], tables: Sequence[table.Table]) -> str:
    """Return one HTML page with a result, its drawings as texts of SVG files, and its tables.

    :param lead: the result in one sentence, without its full stop.
    :param notes: limits of the result.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="lead">{html.escape(lead)}.</p>']
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
    # Each drawing gets its own prefix, because references must not find ids of another drawing.
    parts += [f"<figure>{_inline(svg, f'f{number}-')}</figure>" for number, svg in enumerate(figures)]
    parts += [_html(item) for item in tables]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    name = f"<title>{html.escape(title)}</title>"
    top = f'<!doctype html>\n<html lang="en"><head>{head}{name}<style>{STYLE}</style></head>'
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


def draw(experiment: Experiment, folder: Path) -> list[Path]:
    """Write both plots as SVG and as PNG, and return their paths."""
    made = []
    for name, function in (("accuracy-loss", accuracy_and_loss), ("scaling", scaling)):
        for kind in ("svg", "png"):
            path = folder / f"{name}.{kind}"
            save(partial(function, experiment), path)
            made.append(path)
    return made


def save(draw: Callable[[Any], None], path: Path) -> None:
    """Draw into a new figure and write it, as SVG or PNG by the ending of the path."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(PLOT_STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        draw(figure)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def accuracy_and_loss(experiment: Experiment, figure: Any) -> None:
    """Draw the accuracy on test images (left) and the losses (right) by epoch. A band spans all repeats."""
    from matplotlib.ticker import LogLocator, NullFormatter

    accuracy, loss = figure.subplots(1, 2)
    several = f"{experiment.replicas} replicas"
    groups = ((experiment.of(True), SINGLE, "1 replica"), (experiment.of(False), MANY, several))
    for trainings, color, name in groups:
        _curve(accuracy, trainings, "test_accuracies", color, name)
        _curve(loss, trainings, "losses", color, f"{name}, training")
        _curve(loss, trainings, "test_losses", color, f"{name}, test", style="--")
    accuracy.axhline(PUBLISHED.accuracy, color=GREY, linewidth=1, linestyle=":")
    accuracy.annotate(
        f"published, both: {PUBLISHED.accuracy}",
        (1, PUBLISHED.accuracy),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color="#57606a",
        fontsize=9,
    )
    accuracy.set(title="Accuracy on test images", xlabel="epoch")
    accuracy.legend(loc="lower right")
    loss.set(title="Loss (cross-entropy, logarithmic)", xlabel="epoch", yscale="log")
    loss.legend(loc="upper right")
    loss.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    loss.yaxis.set_major_formatter("{x:g}")
    loss.yaxis.set_minor_formatter(NullFormatter())
    for axes in (accuracy, loss):
        axes.set_xlim(1, max(experiment.epochs, 2))
        axes.xaxis.get_major_locator().set_params(integer=True)


def _curve(axes: Any, trainings: Sequence[Training], of: str, color: str, label: str, style: str = "-") -> None:
    series = list(zip(*(getattr(t.ranks[0], of) for t in trainings), strict=True))
    epochs = range(1, len(series) + 1)
    marker = "o" if len(series) < 10 else None
    axes.plot(
        epochs, [fmean(s) for s in series], style, color=color, label=label, linewidth=1.8, marker=marker, markersize=4
    )
    if len(trainings) > 1:
        axes.fill_between(epochs, [min(s) for s in series], [max(s) for s in series], color=color, alpha=0.15, lw=0)


def scaling(experiment: Experiment, figure: Any) -> None:
    """Draw the speed-up over replicas with the ideal line (left), and the efficiencies with intervals (right)."""
    curves, bars = figure.subplots(1, 2, width_ratios=(1, 1.1))
    found = {name: item for name, item in experiment.scalings.items() if item is not None}
    colors = dict(zip(found, (GREY, ALL, STEADY), strict=False))
    most = max(item.replicas for item in found.values())
    curves.plot([1, most], [1, most], "--", color=INK, linewidth=1.2, label="ideal")
    for name, item in found.items():
        label = name if name == "published" else f"measured, {name}"
        curves.plot([1, item.replicas], [1, item.speed_up], "-o", color=colors[name], label=label, linewidth=1.8)
    curves.set(
        title="Speed-up: real against ideal", xlabel="replicas", ylabel="$T_1\\,/\\,T_N$", xticks=range(1, most + 1)
    )
    curves.set_xlim(0.9, most + 0.1)
    curves.set_ylim(0, 1.08 * max([most, *(item.speed_up for item in found.values())]))
    curves.legend(loc="upper left")
    _efficiencies(bars, found, colors)


def _efficiencies(axes: Any, found: dict[str, Any], colors: dict[str, str]) -> None:
    axes.axhline(100, color=INK, linewidth=1.2, linestyle="--")
    axes.text(len(found) - 0.55, 101.5, "ideal", color=INK, fontsize=9, ha="right")
    tops = [100.0]
    for place, (name, item) in enumerate(found.items()):
        number = item.efficiency
        value = 100 * number.value
        axes.bar(place, value, 0.6, color=colors[name])
        top = value
        if number.low is not None and number.high is not None:
            top = 100 * number.high
            reach = [[value - 100 * number.low], [top - value]]
            axes.errorbar(place, value, reach, color=INK, capsize=5, linewidth=1.3)
        tops.append(top)
        axes.text(place, top + 1.5, f"{value:.1f} %", ha="center", va="bottom", fontweight="bold")
    axes.set_xticks(range(len(found)), [n if n == "published" else f"measured,\n{n}" for n in found])
    axes.set_ylim(0, max(tops) * 1.15)
    axes.grid(visible=False, axis="x")
    axes.set(title="Scaling efficiency $T_1\\,/\\,(N\\,T_N)$", ylabel="%")
