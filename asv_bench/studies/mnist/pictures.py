"""Draw the study with matplotlib: accuracy and losses by epoch, and real against ideal scaling."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from asv_bench.studies.mnist.results import PUBLISHED, Experiment, Training
from pytest_ddl.web.drawing import ALL, GREY, INK, MANY, SINGLE, STEADY


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
