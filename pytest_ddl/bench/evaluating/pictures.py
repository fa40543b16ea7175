"""Draw an evaluation with matplotlib: scaling, learning curves, steps by batch size, and the time of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_ddl.bench.evaluating import judging
from pytest_ddl.bench.evaluating.records import EvaluatedCell, Evaluation, TrainingCurve
from pytest_ddl.bench.evaluating.table import EvaluationSummary
from pytest_ddl.bench.metrics.batch_size import Regime
from pytest_ddl.bench.metrics.registry import NoNumberError
from pytest_ddl.web.drawing import GREY, INK, save

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442")
"""Colors of Okabe and Ito, which color-blind readers can distinguish."""
_REGIMES = {
    Regime.PERFECT_SCALING: ("perfect scaling", "#009E73"),
    Regime.DIMINISHING_RETURNS: ("diminishing returns", "#E69F00"),
    Regime.MAXIMAL_DATA_PARALLELISM: ("none (maximal data parallelism)", "#D55E00"),
}


def draw(summary: EvaluationSummary, folder: Path) -> list[Path]:
    """Write each picture as SVG and return the paths. A picture without data is left out."""
    made = []
    for name, function in PICTURES.items():
        path = folder / f"{name}.svg"
        drawing = function(summary)
        if drawing is None:
            path.unlink(missing_ok=True)  # of an earlier evaluation
        else:
            save(drawing, path)
            made.append(path)
    return made


def scaling(summary: EvaluationSummary) -> Callable[[Any], None] | None:
    """Return the drawing of throughput over replicas, real against ideal, or ``None`` without measurements."""
    points = _throughputs(summary)
    single = next((value for (_name, size), value in points.items() if _name == "one_device"), None)
    if single is None or len(points) < 2:
        return None
    one = single[0]

    def drawing(figure: Any) -> None:
        axes = figure.subplots(1, 1)
        most = max(size for _name, size in points)
        axes.plot([1, most], [1, most], "--", color=INK, linewidth=1.2, label="ideal")
        for color, name in zip(COLORS, _strategies(summary), strict=False):
            found = sorted((size, value) for (of, size), value in points.items() if of == name)
            if not found:
                continue
            sizes, values = [size for size, _value in found], [value for _size, value in found]
            ends = [[(v - low) / one for v, low, _ in values], [(high - v) / one for v, _, high in values]]
            ratios = [value / one for value, _low, _high in values]
            axes.errorbar(sizes, ratios, ends, fmt="-o", color=color, label=name, linewidth=1.8, capsize=4)
        axes.set(
            title="Real against ideal scaling",
            xlabel="replicas (workers, devices)",
            ylabel="throughput / that of one device",
            xticks=sorted({size for _name, size in points}),
        )
        # Long intervals of a busy machine are cut off, so that the values can be read.
        axes.set_ylim(0, 1.2 * max(most, *(value / one for value, _low, _high in points.values())))
        axes.legend(loc="upper left")

    return drawing


def _throughputs(summary: EvaluationSummary) -> dict[tuple[str, int], tuple[float, float, float]]:
    """Return (strategy, replicas) -> throughput with its interval, for cells that are not wrong."""
    throughputs = {}
    for cell in summary.evaluation.cells:
        number = summary.estimate("throughput", cell)
        if number is None or number.value is None or cell.variant in summary.wrong:
            continue
        low, high = (number.value if end is None else end for end in (number.low, number.high))
        throughputs[cell.strategy, cell.replicas] = (number.value, low, high)
    return throughputs


def _strategies(summary: EvaluationSummary) -> list[str]:
    return list(dict.fromkeys(cell.strategy for cell in summary.evaluation.cells))


def learning(summary: EvaluationSummary) -> Callable[[Any], None] | None:
    """Return the drawing of the compared number and of the loss by epoch; ``None`` if nothing was reported."""
    evaluation, metric = summary.evaluation, summary.metric
    cells = [cell for cell in evaluation.cells if evaluation.curves_of(cell.variant, cell.batch)]
    panels: list[tuple[str, Callable[[TrainingCurve], list[tuple[float, float]]]]] = []
    if metric != judging.LOSS:
        panels.append((metric, lambda curve: _reported(curve, metric)))
    if any(_epoch_losses(curve) for curve in evaluation.curves):
        panels.append(("training loss (logarithmic)", _epoch_losses))
    if not panels or not cells:
        return None

    def drawing(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, points) in zip(grid, panels, strict=True):
            for cell, (color, style) in zip(cells, _styles(cells), strict=True):
                _band(axes, [points(one) for one in evaluation.curves_of(cell.variant, cell.batch)], color, style, cell)
            axes.set(title=title, xlabel="epoch" if _has_epochs(evaluation) else "step")
            if "logarithmic" in title:
                axes.set_yscale("log")
        handles, labels = grid[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)

    return drawing


def _styles(cells: Sequence[EvaluatedCell]) -> list[tuple[str, str]]:
    """Return a color for each strategy, and a line style for each number of replicas."""
    names = list(dict.fromkeys(cell.strategy for cell in cells))
    sizes = sorted({cell.replicas for cell in cells})
    lines = ("-", "--", ":", "-.")
    return [
        (COLORS[names.index(cell.strategy) % len(COLORS)], lines[sizes.index(cell.replicas) % len(lines)])
        for cell in cells
    ]


def _has_epochs(evaluation: Evaluation) -> bool:
    return all(len(curve.epochs) > 1 for curve in evaluation.curves)


def _place(curve: TrainingCurve, step: int) -> float:
    """Return the place of a step on the axis: its epoch if the training has epochs, else the step."""
    epochs = curve.epochs
    if len(epochs) < 2:
        return float(step)
    return next((number for number, (_start, end) in enumerate(epochs, 1) if step <= end), len(epochs))


def _reported(curve: TrainingCurve, name: str) -> list[tuple[float, float]]:
    return [(_place(curve, step), value) for step, value in curve.values.get(name, ())]


def _epoch_losses(curve: TrainingCurve) -> list[tuple[float, float]]:
    """Return the mean loss of each epoch; of a training without epochs, of each of ten parts."""
    epochs = curve.epochs
    if len(epochs) < 2:
        edges = [round(curve.steps * part / 10) for part in range(11)]
        epochs = [(start, end) for start, end in pairwise(edges) if end > start]
    points = []
    for start, end in epochs:
        losses = [loss for loss in curve.losses[start:end] if loss is not None]
        if losses:
            points.append((_place(curve, end), losses[-1] if curve.running_mean else fmean(losses)))
    return points


def _band(axes: Any, curves: Sequence[list[tuple[float, float]]], color: str, style: str, cell: EvaluatedCell) -> None:
    """Draw the mean over seeds, and a band from the smallest to the largest."""
    by_place: dict[float, list[float]] = {}
    for curve in curves:
        for place, value in curve:
            by_place.setdefault(place, []).append(value)
    if not by_place:
        return
    places = sorted(by_place)
    means = [fmean(by_place[place]) for place in places]
    marker = "o" if len(places) == 1 else None
    axes.plot(places, means, style, color=color, label=_short(cell), linewidth=1.6, marker=marker)
    if len(curves) > 1:
        low, high = ([end(by_place[place]) for place in places] for end in (min, max))
        axes.fill_between(places, low, high, color=color, alpha=0.08, lw=0)


def batch_size(summary: EvaluationSummary) -> Callable[[Any], None] | None:
    """Return the drawing of steps over batch sizes with the three regimes, or ``None`` without a sweep."""
    sweep = summary.evaluation.sweep
    best = sweep.best if sweep is not None else {}
    if sweep is None or not best:
        return None

    def drawing(figure: Any) -> None:
        axes = figure.subplots(1, 1)
        batches, steps = list(best), [trial.steps or 0 for trial in best.values()]
        axes.plot(batches, steps, "o", color=INK, label="measured, best learning rate", zorder=3)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        first = steps[0] * batches[0]
        axes.plot(batches, [first / batch for batch in batches], "--", color=GREY, label="perfect scaling of the first")
        try:
            fit = sweep.scaling
        except NoNumberError as error:
            axes.set_title(str(error), fontsize=9)
        else:
            axes.plot(
                batches, [fit.predict(batch) for batch in batches], color=COLORS[0], label="fit S (1 + B_crit / B)"
            )
            _regimes(axes, fit.perfect_up_to, fit.maximal_from, (batches[0], batches[-1]))
        axes.set(
            title=f"Steps to a training loss of {sweep.target:g}, on one device",
            xlabel="global batch size",
            ylabel="steps",
        )
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(loc="lower left", fontsize=8)

    return drawing


def _regimes(axes: Any, perfect: float, maximal: float, sizes: tuple[int, int]) -> None:
    """Shade the three regimes over the measured batch sizes, and name each below the axes' top."""
    edges = (sizes[0] / 1.3, perfect, maximal, sizes[1] * 1.3)
    for place, (name, color) in enumerate(_REGIMES.values()):
        low, high = max(edges[place], edges[0]), min(edges[place + 1], edges[-1])
        if high <= low:
            # Named too, so that a reader knows that this regime is outside the measured sizes.
            axes.plot([], [], "s", color=color, alpha=0.3, label=f"{name}: not reached")
            continue
        axes.axvspan(low, high, color=color, alpha=0.12, lw=0, label=name)
    axes.set_xlim(edges[0], edges[-1])


def step_split(summary: EvaluationSummary) -> Callable[[Any], None] | None:
    """Return the drawing of the time of a step, split into computing and communicating; ``None`` if nothing was
    measured."""
    bars = [(cell, *split) for cell in summary.in_order if (split := _split(summary, cell)) is not None]
    if not bars:
        return None

    def drawing(figure: Any) -> None:
        axes = figure.subplots(1, 1)
        labels = []
        for place, (cell, whole, communication) in enumerate(reversed(bars)):
            labels.append(f"{_short(cell)} (WRONG)" if cell.variant in summary.wrong else _short(cell))
            if communication is None:
                alone = cell.replicas == 1 and cell.kind in ("", "copies")
                color = COLORS[0] if alone else GREY
                axes.barh(place, 1e3 * whole, color=color)
                continue
            cost = min(max(communication, 0.0), whole)
            axes.barh(place, 1e3 * (whole - cost), color=COLORS[0])
            axes.barh(place, 1e3 * cost, left=1e3 * (whole - cost), color=COLORS[1])
        for color, name in ((COLORS[0], "computing"), (COLORS[1], "communicating and waiting"), (GREY, "not split")):
            axes.barh(0, 0, color=color, label=name)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set(title="Time of a steady step", xlabel="milliseconds")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=3)

    return drawing


def _short(cell: EvaluatedCell) -> str:
    """Return the variant without the settings that every reader expects."""
    return cell.variant.replace(",ps=1,processes=shared", "").replace(";model:1", "")


def _split(summary: EvaluationSummary, cell: EvaluatedCell) -> tuple[float, float | None] | None:
    whole = summary.estimate("step_time", cell)
    if whole is None or whole.value is None:
        return None
    communication = None if cell.is_reference else summary.estimate("communication_time", cell)
    return whole.value, communication.value if communication is not None else None


PICTURES: Mapping[str, Callable[[EvaluationSummary], Callable[[Any], None] | None]] = {
    "scaling": scaling,
    "learning": learning,
    "batch-size": batch_size,
    "step-time": step_split,
}
"""Name of a file without its ending -> function that returns its drawing, or ``None`` if there is nothing to draw."""
