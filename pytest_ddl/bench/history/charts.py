"""Draw charts as scalable SVG with their text in HTML. They are sharp and legible at any width, without scripts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pytest_ddl.bench.history.detect import Change, relative_noise
from pytest_ddl.bench.history.meaning import family, higher_is_better
from pytest_ddl.bench.history.model import Commit, HistoryPoint, Series, dates
from pytest_ddl.web.units import DASH, THIN, TIMES, labels, number, percent, scale, ticks

WIDTH, HEIGHT = 1000.0, 100.0
"""Size of the drawing. The page stretches it to the available space; strokes keep their width."""
LEAST_RANGE = 0.12
"""Minimum height of a chart, as a share of the median, so that one percent of noise does not look large."""
STATES = {
    "confirmed": ("confirmed", "▲"),
    "exact": ("confirmed", "▲"),
    "unconfirmed": ("candidate", "?"),
    "not asked": ("candidate", "?"),
    "refuted": ("refuted", TIMES),
    "explained": ("refuted", DASH),
}


def appearance(change: Change, accepted: frozenset[str]) -> tuple[str, str]:
    """Return the class and the sign of a change. Changes that alert look different from those that do not."""
    if higher_is_better(change.series.benchmark) is None:
        return "changed", DASH
    if not change.worse:
        return "improved", "✓"
    if change.id in accepted:
        return "accepted", DASH
    return STATES[change.verdict.status] if change.standing else ("recovered", DASH)


@dataclass(frozen=True)
class Band:
    """Interval that is drawn around a point, and its meaning."""

    low: float
    high: float
    meaning: str


def band(point: HistoryPoint, series: Series, noise: float | None) -> Band | None:
    """Return the interval over launches if it is known, else that between neighboring commits, else that of samples."""
    if point.low is not None and point.high is not None and point.basis == "launches":
        return Band(point.low, point.high, "95 %, over launches")
    if noise:
        return Band(
            point.value * math.exp(-1.96 * noise), point.value * math.exp(1.96 * noise), "95 %, between commits"
        )
    if point.low is not None and point.high is not None:
        return Band(point.low, point.high, "99 %, within one launch")
    return None


def is_share(series: Series) -> bool:
    """Return whether values are shown as percentages: efficiencies and shares that are stored as fractions."""
    kind, unit = family(series.benchmark), series.benchmark.unit
    return unit not in ("%", "seconds", "s") and (
        kind.name == "efficiency" or (kind.name == "communication" and "share" in series.benchmark.name)
    )


@dataclass(frozen=True)
class PlotArea:
    """Range of values and commits in a chart, with their coordinates."""

    low: float
    high: float
    commits: Sequence[Commit]

    def x(self, position: float) -> float:
        return 0.5 * WIDTH if len(self.commits) < 2 else position / (len(self.commits) - 1) * WIDTH

    def y(self, value: float) -> float:
        return HEIGHT * (1 - (value - self.low) / (self.high - self.low))


def plot_area(series: Series, commits: Sequence[Commit], noise: float | None) -> PlotArea:
    """Return an area with room for all points, their intervals, and the ideal value."""
    values = [point.value for point in (*series.points, *series.dropped)]
    for point in series.points:
        around = band(point, series, noise)
        values += [around.low, around.high] if around else []
    ideal = family(series.benchmark).ideal
    if ideal is not None:
        values.append(ideal)
    low, high = min(values), max(values)
    middle = statistics.median(values)
    short = max(LEAST_RANGE * abs(middle) - (high - low), 0.0) or (1.0 if high == low else 0.0)
    pad = 0.06 * (high - low) + short / 2
    floor = 0.0 if low >= 0 else -math.inf
    return PlotArea(max(low - pad, floor), high + pad, commits)


def chart(
    series: Series,
    commits: Sequence[Commit],
    found: Sequence[Change],
    title: str,
    hue: str,
    accepted: frozenset[str] = frozenset(),
) -> str:
    """Draw one series over commits, as a figure with its newest value.

    :param commits: commits of the axis, oldest first; the same for all charts of a view.
    :param hue: class of the color.
    """
    noise = relative_noise(series)
    room = plot_area(series, commits, noise)
    places = {commit.hash: index for index, commit in enumerate(commits)}
    by, unit = scale(series.benchmark.unit, room.high, share=is_share(series))
    marks, sizes = _marks(series, found, room, places, accepted)
    lines, words = _grid(ticks(room.low / by, room.high / by), lambda tick: room.y(tick * by))
    ideal = family(series.benchmark).ideal
    if ideal is not None:
        lines += f'<path class="ideal" d="M0 {room.y(ideal):.1f}H{WIDTH:.0f}"/>'
        words += f'<span class="ideal-word" style="top:{room.y(ideal):.1f}%">ideal</span>'
    drawing = lines + marks + _drawn(series, room, places, noise)
    newest = series.points[-1] if series.points else None
    first, last = dates((commits[0], commits[-1]))
    now = _newest(newest, series, noise, by, unit)
    summary = _summary(series, title, found, by, unit)
    spots = " ".join(f"{room.x(places[point.commit.hash]) / WIDTH * 100:.1f}" for point in series.points)
    return (
        f'<figure class="chart {hue}" data-series="{series.id}" data-places="{spots}"><figcaption>'
        f'<span class="name">{escape(title)}</span>'
        f'<span class="now">{now}</span></figcaption>'
        f'<div class="plot" tabindex="0" role="img" aria-label="{escape(summary, quote=True)}">'
        f"{_svg(drawing)}"
        f'{words}{sizes}<i class="cursor" hidden></i></div>'
        f'<div class="axis" aria-hidden="true"><span>{first}</span><span>{last}</span></div>'
        "</figure>"
    )


def _grid(places: list[float], y: Callable[[float], float]) -> tuple[str, str]:
    """Return the lines of a grid, and their labels."""
    lines = "".join(f'<path class="grid" d="M0 {y(place):.1f}H{WIDTH:.0f}"/>' for place in places)
    words = "".join(
        f'<span class="tick" style="top:{y(place):.1f}%">{text}</span>'
        for place, text in zip(places, labels(places), strict=True)
    )
    return lines, words


def _line(spots: Sequence[str], kind: str) -> str:
    """Draw a line through points, each ``x y``, and the points themselves."""
    dots = "".join(f"M{spot}h0" for spot in spots)
    return f'<path class="line {kind}" d="M{"L".join(spots)}"/><path class="dots {kind}" d="{dots}"/>'


def _svg(drawing: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" aria-hidden="true">{drawing}</svg>'


def _newest(newest: HistoryPoint | None, series: Series, noise: float | None, by: float, unit: str) -> str:
    if newest is None:
        return "<small>no results</small>"
    around = band(newest, series, noise)
    half = f" ±{number((around.high - around.low) / 2 / by, 2)}" if around else ""
    return f"{number(newest.value / by)}<small>{half} {escape(unit)}</small>"


def _drawn(series: Series, room: PlotArea, places: Mapping[str, int], noise: float | None) -> str:
    """Draw the band, the line with its points, and a separate line for results of older benchmark versions."""
    upper, lower = [], []
    for point in series.points:
        around = band(point, series, noise)
        if around:
            x = room.x(places[point.commit.hash])
            upper.append(f"{x:.1f} {room.y(around.high):.1f}")
            lower.append(f"{x:.1f} {room.y(around.low):.1f}")
    drawn = f'<path class="band" d="M{"L".join(upper + lower[::-1])}Z"/>' if len(upper) > 1 else ""
    if len(upper) == 1:
        drawn = f'<path class="whisker" d="M{upper[0]}L{lower[0]}"/>'
    for points, kind in ((series.dropped, "old"), (series.points, "")):
        spots = [f"{room.x(places[point.commit.hash]):.1f} {room.y(point.value):.1f}" for point in points]
        drawn += _line(spots, kind) if spots else ""
    return drawn


def _marks(
    series: Series, found: Sequence[Change], room: PlotArea, places: Mapping[str, int], accepted: frozenset[str]
) -> tuple[str, str]:
    """Mark changes of level: shade the range of commits, draw both levels, and write the size beside them."""
    shapes, words = [], []
    for change in found:
        if change.verdict.status == "explained":
            continue
        state, sign = appearance(change, accepted)
        start, end = room.x(places[change.before.hash]), room.x(places[change.after.hash])
        tall = (
            "" if change.kind == "creep" else f'<rect x="{start:.1f}" width="{end - start:.1f}" height="{HEIGHT:.0f}"/>'
        )
        left, right = max(0.0, start - 0.12 * WIDTH), min(WIDTH, end + 0.12 * WIDTH)
        if change.kind == "creep":
            left, right = start, end
            levels = f"M{left:.1f} {room.y(change.old):.1f}L{right:.1f} {room.y(change.new):.1f}"
        else:
            levels = f"M{left:.1f} {room.y(change.old):.1f}H{start:.1f}M{end:.1f} {room.y(change.new):.1f}H{right:.1f}"
        shapes.append(f'<g class="change {state}">{tall}<path d="{levels}"/></g>')
        middle = min(max((start + end) / 2 / WIDTH * 100, 9), 91)
        words.append(f'<span class="mark {state}" style="left:{middle:.1f}%">{sign} {percent(change.effect)}</span>')
    return "".join(shapes), "".join(words)


def _summary(series: Series, title: str, found: Sequence[Change], by: float, unit: str) -> str:
    if not series.points:
        return f"{series.benchmark.name}, {title}: no results"
    values = [point.value / by for point in series.points]
    start, end = dates((series.points[0].commit, series.points[-1].commit))
    first = (
        f"{series.benchmark.name}, {title}: {len(values)} results from {start} to {end}, "
        f"newest {number(values[-1])} {unit}, between {number(min(values))} and {number(max(values))}."
    )
    changes = (
        f"{'Worse' if change.worse else 'Better'} by {percent(change.effect)} after {change.before.short}, "
        f"by {change.after.short}: {change.verdict.status}."
        for change in found
    )
    return " ".join([first, *changes])


@dataclass(frozen=True)
class Curve:
    """Throughput of one strategy over replicas, at the newest commit."""

    name: str
    hue: str
    points: tuple[tuple[int, float, Band | None], ...]


def scaling_chart(curves: Sequence[Curve], single: float, unit: str) -> str:
    """Draw throughput over replicas, and ideal scaling, which is ``single`` times the replicas."""
    most = max(replicas for curve in curves for replicas, _, _ in curve.points)
    top = max([single * most, *(value for curve in curves for _, value, _ in curve.points)]) * 1.08
    left, right = 0.04 * WIDTH, 0.73 * WIDTH

    def x(replicas: float) -> float:
        return left + (replicas - 1) / max(most - 1, 1) * (right - left)

    def y(value: float) -> float:
        return HEIGHT * (1 - value / top)

    lines, labels_of_grid = _grid(ticks(0, top, 4), y)
    drawn, words = [lines], [labels_of_grid]
    drawn.append(f'<path class="ideal" d="M{x(1):.1f} {y(single):.1f}L{x(most):.1f} {y(single * most):.1f}"/>')
    ends = [(y(single * most), "ideal", "neutral", x(most))]
    for curve in curves:
        points = sorted(curve.points, key=lambda point: point[0])
        bands = [(replicas, around) for replicas, _, around in points if around]
        if len(bands) > 1:
            edge = [f"{x(replicas):.1f} {y(around.high):.1f}" for replicas, around in bands]
            edge += [f"{x(replicas):.1f} {y(around.low):.1f}" for replicas, around in reversed(bands)]
            drawn.append(f'<path class="band {curve.hue}" d="M{"L".join(edge)}Z"/>')
        drawn.append(_line([f"{x(replicas):.1f} {y(value):.1f}" for replicas, value, _ in points], f"bold {curve.hue}"))
        last, value, _ = points[-1]
        share = f"{value / (single * last) * 100:.0f}{THIN}%" if last > 1 else ""
        ends.append((y(value), f"<span>{escape(curve.name)} </span>{share}", curve.hue, x(last)))
    previous = -math.inf
    for height, text, hue, at in sorted(ends):
        # Labels must not overlap if lines end close to each other.
        placed = max(height, previous + 9)
        previous = placed
        style = f"top:{placed:.1f}%;left:{at / WIDTH * 100 + 1.5:.1f}%"
        words.append(f'<span class="end {hue}" style="{style}">{text}</span>')
    sizes = sorted({replicas for curve in curves for replicas, _, _ in curve.points})
    below = "".join(f'<span style="left:{x(size) / WIDTH * 100:.1f}%">{size}</span>' for size in sizes)
    legend = "".join(f'<span class="{curve.hue}">{escape(curve.name)}</span> ' for curve in curves)
    said = "; ".join(
        f"{curve.name}: " + ", ".join(f"{number(value)} with {replicas}" for replicas, value, _ in curve.points)
        for curve in curves
    )
    label = f"Throughput in {unit} over replicas. Ideal: {number(single)} for each replica. {said}"
    return (
        f'<figure class="chart scaling"><div class="plot" role="img" aria-label="{escape(label, quote=True)}">'
        f"{_svg(''.join(drawn))}"
        f'{"".join(words)}</div><div class="sizes" aria-hidden="true">{below}</div>'
        '<div class="axis" aria-hidden="true"><span>replicas</span></div>'
        f'<p class="legend" aria-hidden="true">{legend}</p>'
        "</figure>"
    )
