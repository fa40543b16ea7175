"""Draw a forecast: the efficiency by number of replicas with its interval, and the terms of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_ddl.bench.forecasting.evidence import efficiencies
from pytest_ddl.bench.forecasting.model import TERMS
from pytest_ddl.bench.forecasting.predicting import LEVEL, Forecast
from pytest_ddl.bench.metrics.registry import statistics_package
from pytest_ddl.web.drawing import ALL, GREY, INK, MANY, SINGLE, STEADY, save

COLORS = {
    "compute": SINGLE,
    "fixed": STEADY,
    "stragglers": "#E69F00",
    "crossing": "#CC79A7",
    "within": ALL,
    "between": MANY,
    "latency": GREY,
}
"""Colors of the terms, from Okabe and Ito."""


def draw(forecast: Forecast, path: Path) -> None:
    """Write a picture of a forecast. The suffix of the path chooses the format, such as ``.svg`` or ``.png``.

    :raises MissingPackageError: if matplotlib is not installed.
    :raises OSError: if the file cannot be written.
    :raises ValueError: if matplotlib does not know the suffix.
    """
    statistics_package("matplotlib")

    def drawing(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        _efficiency(left, forecast)
        _terms(right, forecast)

    save(drawing, path)


def _efficiency(axes: Any, forecast: Forecast) -> None:
    points = [point for point in forecast.points if point.efficiency is not None]
    counts = [point.size.replicas for point in points]
    axes.axhline(1.0, color=INK, linestyle="--", linewidth=1.2, label="ideal")
    axes.plot(counts, [point.efficiency for point in points], "-o", color=MANY, label="forecast", linewidth=1.8)
    low, high = ([getattr(point, f"efficiency_{end}") for point in points] for end in ("low", "high"))
    axes.fill_between(counts, low, high, color=MANY, alpha=0.18, linewidth=0, label=f"{LEVEL:.0%} interval")
    measured = efficiencies(forecast.evidence.observations)
    if measured:
        seen = [one.size.replicas for one, _ in measured]
        axes.plot(seen, [value for _, value in measured], "s", color=SINGLE, label="measured")
    axes.set(title="Scaling efficiency", xlabel="replicas", ylabel="throughput of a replica / that of one alone")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.1)
    axes.legend(loc="lower left")


def _terms(axes: Any, forecast: Forecast) -> None:
    points = [point for point in forecast.points if point.shares]
    bottom = [0.0] * len(points)
    for name, color in COLORS.items():
        shares = [100 * point.shares[name] for point in points]
        axes.bar(range(len(points)), shares, 0.7, bottom=bottom, color=color, label=TERMS[name])
        bottom = [below + share for below, share in zip(bottom, shares, strict=True)]
    axes.set_xticks(range(len(points)), [str(point.size.replicas) for point in points])
    axes.set(title="What a step consists of", xlabel="replicas", ylabel="%")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    axes.grid(visible=False, axis="x")
