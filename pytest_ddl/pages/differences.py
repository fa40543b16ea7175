"""Picture of the difference of every variable after each step, against what rounding explains."""

from __future__ import annotations

import math
from html import escape

from pytest_ddl.pages.distances import Distance, Distances
from pytest_ddl.pages.picture import HEIGHT, WIDTH, Line, Picture, Tick, place, plot, step_ticks
from pytest_ddl.web.units import TIMES, decades, power, shown

TITLE = "Difference from one device"
MOST_LINES = 60
_LEAST, _MOST = -3, 20
"""Exponents that the axis shows at most. Distances below are rounding, and those above are as wrong as any."""


def differences(found: Distances) -> Picture:
    """Draw one line for each variable; the worst one, which the table below the picture lists, is highlighted."""
    if found.reason:
        return Picture("difference", TITLE, absent=found.reason)
    scale = _Scale.of(found)
    lines = [
        Line(
            track.variable.name,
            [
                None if one is None else (place(at, len(found.steps)), scale.height(one.excess))
                for at, one in enumerate(track.worst)
            ],
        )
        for track in found.tracks[:MOST_LINES]
    ]
    worst = found.tracks[0]
    hue = "blue" if found.first_wrong is None else "alarm"
    highlighted = Line(worst.variable.name, lines[0].points, "bold", hue, named=True)
    others = f"{len(lines) - 1} other variable{'s' if len(lines) > 2 else ''}"
    rest = [Line(others, line.points, named=at == 0) for at, line in enumerate(lines[1:])]
    drawn = [*reversed(rest), highlighted]
    summary = _summary(found)
    return Picture(
        "difference",
        TITLE,
        plot(
            TITLE,
            summary,
            drawn,
            rows=scale.ticks,
            columns=[Tick(tick.at, tick.text) for tick in step_ticks(found.steps)],
            shapes=_bound(scale) + _first_wrong(found),
            words=f'<span class="bound-word" style="top:{100 - scale.bound * 100:.1f}%">bound</span>',
        )
        + _table(found),
        about=(
            "The largest difference of a variable over all replicas after each step, divided by its bound: the largest "
            "difference that rounding explains. Below the bound (shaded), the runs agree. Step 0 is the state before "
            f"training. {summary}"
        ),
    )


class _Scale:
    """Logarithmic axis with a place for 0 at its lower end and one for infinity at its upper end."""

    def __init__(self, low: int, high: int, *, zero: bool, infinite: bool) -> None:
        self.low, self.high = low, high
        self._foot, self._head = (0.1 if zero else 0.0), (0.9 if infinite else 1.0)
        self.ticks = [Tick(self._at(at), f"{power(at)} {TIMES}") for at in decades(low, high)]
        self.ticks += [Tick(0.0, "equal")] if zero else []
        self.ticks += [Tick(1.0, "∞")] if infinite else []

    @classmethod
    def of(cls, found: Distances) -> _Scale:
        every = [one.excess for track in found.tracks[:MOST_LINES] for one in track.worst if one]
        sizes = [math.log10(one) for one in every if 0 < one < math.inf]
        low = max(_LEAST, math.floor(min([*sizes, -1.0])))
        high = min(_MOST, math.ceil(max([*sizes, 1.0])))
        return cls(low, high, zero=0.0 in every, infinite=math.inf in every)

    def _at(self, exponent: float) -> float:
        share = (min(max(exponent, self.low), self.high) - self.low) / (self.high - self.low)
        return self._foot + share * (self._head - self._foot)

    @property
    def bound(self) -> float:
        return self._at(0)

    def height(self, excess: float) -> float:
        if excess == 0:
            return 0.0
        return 1.0 if math.isinf(excess) else self._at(math.log10(excess))


def _bound(scale: _Scale) -> str:
    top = HEIGHT * (1 - scale.bound)
    return (
        f'<rect class="within" x="0" y="{top:.1f}" width="{WIDTH:.0f}" height="{HEIGHT - top:.1f}"/>'
        f'<path class="ideal" d="M0 {top:.1f}H{WIDTH:.0f}"/>'
    )


def _first_wrong(found: Distances) -> str:
    if found.first_wrong is None:
        return ""
    x = place(found.steps.index(found.first_wrong), len(found.steps)) * WIDTH
    return f'<path class="first-wrong" d="M{x:.1f} 0V{HEIGHT:.0f}"/>'


def _summary(found: Distances) -> str:
    worst = found.tracks[0]
    if found.first_wrong is None:
        return f"All {len(found.tracks)} variables stay within their bounds in steps 0 to {found.steps[-1]}."
    beyond = sum(found.steps[track.first_wrong] == found.first_wrong for track in found.tracks if track.largest > 1)
    one = worst.worst[worst.first_wrong]
    assert one is not None
    more = f", with {beyond - 1} other variable{'s' if beyond > 2 else ''}" if beyond > 1 else ""
    when = f"after step {found.first_wrong}" if found.first_wrong else "before the first step"
    return f"{worst.variable.name} is the worst: {_sizes(one)} {when}{more}."


def _sizes(one: Distance) -> str:
    return f"it differs by {shown(one.error)}, and its bound is {shown(one.bound)}"


def _table(found: Distances) -> str:
    track = found.tracks[0]
    rows = "".join(
        f'<tr{" class=beyond" if one.wrong else ""}><th scope="row">{step}</th><td>{shown(one.error)}</td>'
        f"<td>{shown(one.bound)}</td><td>{shown(one.excess)}</td><td>{one.replica}</td></tr>"
        for step, one in zip(found.steps, track.worst, strict=True)
        if one
    )
    return (
        f'<details class="table"><summary>Numbers of {escape(track.variable.name)}</summary><div class="scroll"><table>'
        '<thead><tr><th scope="col">after step</th><th scope="col">difference</th><th scope="col">bound</th>'
        '<th scope="col">times the bound</th><th scope="col">worst replica</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
