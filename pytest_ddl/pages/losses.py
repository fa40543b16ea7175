"""Picture of the losses of both runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.picture import Line, Picture, Tick, place, plot, step_ticks
from pytest_ddl.records import TrainingRecord
from pytest_ddl.web.units import decades, labels, power, shown, ticks

TITLE = "Loss"
_LOGARITHMIC = 100.0
"""Ratio of the largest to the smallest loss from which the axis is logarithmic."""


def losses(report: Report) -> Picture:
    """Draw the loss that each run reported for its steps."""
    ours, theirs = _losses(report.reference), _losses(report.distributed)
    if not ours and not theirs:
        return Picture(
            "loss", TITLE, absent="no step reported a finite loss (run.steps yields it, run.record takes it)"
        )
    steps = tuple(range(1, max([*ours, *theirs]) + 1))
    values = [*ours.values(), *theirs.values()]
    height, rows = _axis(min(values), max(values))

    def line(name: str, found: Mapping[int, float], kind: str, hue: str) -> Line:
        points = [
            (place(at, len(steps)), height(found[step])) if step in found else None for at, step in enumerate(steps)
        ]
        return Line(name, points, kind, hue, named=True)

    lines = [line("one device", ours, "bold", "ink"), line(report.strategy, theirs, "bold dashed", "blue")]
    return Picture(
        "loss",
        TITLE,
        plot(TITLE, _summary(report.strategy, ours, theirs), lines, rows=rows, columns=step_ticks(steps)),
        about=f"The loss that each run reports for a step. {_summary(report.strategy, ours, theirs)}",
    )


def _losses(record: TrainingRecord) -> dict[int, float]:
    """Return the finite losses by step, of the first rank that reports any."""
    for rank in record.ranks:
        losses = {step.index: step.loss for step in rank.steps if step.loss is not None and math.isfinite(step.loss)}
        if losses:
            return losses
    return {}


def _axis(low: float, high: float) -> tuple[Callable[[float], float], list[Tick]]:
    """Return a function from a loss to its height, and the ticks."""
    if low > 0 and high / low > _LOGARITHMIC:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))

        def logarithmic(value: float) -> float:
            return (math.log10(value) - first) / (last - first)

        return logarithmic, [Tick((at - first) / (last - first), power(at)) for at in decades(first, last)]
    pad = 0.08 * (high - low) or abs(high) * 0.1 or 1.0
    bottom, top = low - pad, high + pad

    def linear(value: float) -> float:
        return (value - bottom) / (top - bottom)

    values = ticks(bottom, top)
    return linear, [Tick(linear(value), text) for value, text in zip(values, labels(values), strict=True)]


def _summary(strategy: str, ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        only = strategy if theirs else "one device"
        return f"Only {only} reports a loss."
    first = next((step for step in both if not math.isclose(ours[step], theirs[step], rel_tol=1e-3)), None)
    last = both[-1]
    end = f"In step {last}: {shown(ours[last])} on one device, {shown(theirs[last])} under {strategy}."
    if first is None:
        return f"Both are equal to three digits. {end}"
    if first == last:
        return end
    return f"In step {first}: {shown(ours[first])} on one device, {shown(theirs[first])} under {strategy}. {end}"
