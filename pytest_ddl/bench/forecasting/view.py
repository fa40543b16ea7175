"""Show a forecast as text and as a picture: speeds, the term that costs the most, the limit, and doubts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Size, efficiencies
from pytest_ddl.bench.forecasting.model import TERMS
from pytest_ddl.bench.forecasting.predicting import LEVEL, Forecast, ForecastPoint
from pytest_ddl.bench.forecasting.score import Scored
from pytest_ddl.bench.metrics.registry import statistics_package
from pytest_ddl.web.drawing import ALL, GREY, INK, MANY, SINGLE, STEADY, save

WIDTH = 100
HEAD = f"{'replicas':>8}  {'nodes':>5}  {'examples/s':>28}  {'efficiency':>20}  {'exposed':>7}  binds"
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


def report(forecast: Forecast) -> str:
    """Return the forecast as text of at most 100 columns."""
    lines = [forecast.evidence.name, *_wrap(_basis(forecast.evidence)), "", HEAD]
    refused: list[str] = []
    for point in forecast.points:
        lines.append(_row(point, refused))
    lines.append("")
    lines += [line for number, reason in enumerate(refused, 1) for line in _wrap(f"[{number}] {reason}")]
    lines += _wrap(f"Numbers in parentheses are {LEVEL:.0%} intervals.")
    for text in (*_limit(forecast), *_binding(forecast), *(f"Less certain: {one}." for one in forecast.warnings)):
        lines += _wrap(text)
    return "\n".join(lines)


def comparison(scores: list[Scored]) -> str:
    """Return forecasts beside their measurements as text."""
    width = max(len(one.program) for one in scores)
    lines = [f"{'program':{width}}  {'replicas':>8}  {'predicted/s':>11}  {'measured/s':>10}  {'error':>7}  interval"]
    for one in scores:
        measured = one.size.examples / one.measured
        start = f"{one.program:{width}}  {one.size.replicas:8d}"
        if one.predicted is None or one.error is None:
            lines.append(f"{start}  {'refused':>11}  {measured:10.4g}  {'':>7}  {one.refused.partition(':')[0]}")
            continue
        inside = "holds" if one.covered else "missed"
        lines.append(
            f"{start}  {one.size.examples / one.predicted:11.4g}  {measured:10.4g}  {one.error:+7.1%}  {inside}"
        )
    return "\n".join(lines)


def _basis(evidence: ForecastEvidence) -> str:
    sizes = ", ".join(_size(one.size) for one in evidence.observations)
    parts = [f"from {len(evidence.observations)} measured sizes ({sizes})"]
    if evidence.gradient_bytes:
        count = f" in {evidence.collectives} collectives" if evidence.collectives else ""
        parts.append(f"{evidence.gradient_bytes / 1e6:.3g} MB of gradients{count}")
    parts += [f"link {name}: {link}" for name, link in _links(evidence)]
    return f"{'; '.join(parts)}; {evidence.per_node} replicas in a node."


def _links(evidence: ForecastEvidence) -> Iterator[tuple[str, str]]:
    if evidence.within.kind or evidence.within.bytes_per_second:
        yield "within a node", str(evidence.within)
    if evidence.between.kind or evidence.between.bytes_per_second:
        yield "between nodes", str(evidence.between)


def _size(size: Size) -> str:
    batch = f" x batch {size.batch_per_replica:g}" if size.batch_per_replica else ""
    return f"{size.replicas}{batch}"


def _row(point: ForecastPoint, refused: list[str]) -> str:
    start = f"{point.size.replicas:8d}  {point.size.nodes:5d}"
    if point.seconds is None or point.low is None or point.high is None or point.efficiency is None:
        if point.refused not in refused:
            refused.append(point.refused)
        return f"{start}  refused [{refused.index(point.refused) + 1}]"
    examples = point.size.examples
    speed = f"{examples / point.seconds:.4g} ({examples / point.high:.3g} to {examples / point.low:.3g})"
    span = f"{point.efficiency:.2f} ({point.efficiency_low:.2f} to {point.efficiency_high:.2f})"
    return f"{start}  {speed:>28}  {span:>20}  {point.exposed or 0:7.1%}  {point.binding}"


def _binding(forecast: Forecast) -> Iterator[str]:
    """Say from which size on a term costs the most."""
    before = ""
    for point in sorted(forecast.points, key=lambda one: one.size.replicas):
        name = point.binding
        if name and name != before:
            share = point.shares[name]
            yield f"From {point.size.replicas} replicas on, {TERMS[name]} costs the most: {share:.1%} of the step."
            before = name


def _limit(forecast: Forecast) -> Iterator[str]:
    limit = forecast.limit
    if limit is None:
        return
    if limit.replicas is None or limit.efficiency is None:
        yield f"The efficiency is above {limit.floor:.0%} up to {limit.largest} replicas; more are refused."
        return
    start = f"At {limit.replicas} replicas the efficiency is {limit.efficiency:.0%}, below {limit.floor:.0%}"
    now = f"{limit.efficiency:.0%}"
    seen = [f"{name}: {found:.0%}" for name, found in limit.remedies.items() if f"{found:.0%}" != now]
    remedies = ", ".join(seen[:3])
    yield f"{start}. What would raise it there: {remedies}." if remedies else f"{start}. No change looked at raises it."


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ")


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
