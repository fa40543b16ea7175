"""Draw pictures as scalable SVG with their text in HTML: legible at any width, in both color schemes, without scripts.

A picture whose data was not recorded is a sentence that says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 1000.0, 100.0
"""Size of the drawing area of a plot. The page stretches it to the available space; strokes keep their width."""


@dataclass(frozen=True)
class Picture:
    """Section of the page: a picture with its title and an explanation, or the reason for its absence."""

    id: str
    title: str
    body: str = ""
    """HTML of the picture."""
    about: str = ""
    """Explanation of the picture, as plain text."""
    absent: str = ""
    """Why there is no picture, as one sentence."""

    def __str__(self) -> str:
        if self.absent:
            return f'<li id="{self.id}"><b>{self.title}</b>: {escape(self.absent)}.</li>'
        head = f'<section id="{self.id}" aria-labelledby="{self.id}-title"><h2 id="{self.id}-title">{self.title}</h2>'
        about = f'<p class="about">{escape(self.about)}</p>' if self.about else ""
        return f"{head}{about}{self.body}</section>"


@dataclass(frozen=True)
class Line:
    """One line of a plot. A point is ``(x, y)`` with x from 0 to 1 and y from 0 (bottom) to 1; ``None`` is a gap."""

    name: str
    points: Sequence[tuple[float, float] | None]
    kind: str = ""
    """Classes of its style, for example ``bold``."""
    hue: str = "neutral"
    named: bool = False
    """True if the key above the plot explains it."""


@dataclass(frozen=True)
class Tick:
    """Label at a place of an axis, from 0 to 1."""

    at: float
    text: str


def plot(
    title: str,
    summary: str,
    lines: Sequence[Line],
    *,
    rows: Sequence[Tick],
    columns: Sequence[Tick],
    shapes: str = "",
    words: str = "",
) -> str:
    """Draw lines over steps.

    :param summary: text alternative: what one sees.
    :param rows: ticks of the vertical axis, which also get grid lines.
    :param shapes: SVG that is drawn below the lines.
    :param words: HTML that is placed over the drawing.
    """
    grid = "".join(f'<path class="grid" d="M0 {_y(tick.at):.1f}H{WIDTH:.0f}"/>' for tick in rows)
    drawing = grid + shapes + "".join(map(_drawn, lines))
    for tick in rows:
        words += f'<span class="tick" style="top:{_y(tick.at):.1f}%">{escape(tick.text)}</span>'
    key = "".join(
        f'<span class="{line.hue}"><i class="swatch {line.kind}"></i> {escape(line.name)}</span> '
        for line in lines
        if line.named
    )
    steps = "".join(f'<span style="left:{tick.at * 100:.1f}%">{escape(tick.text)}</span>' for tick in columns)
    return (
        f'<figure class="chart wide"><figcaption class="key">{key}</figcaption>'
        f'<div class="plot">{svg(drawing, title, summary)}'
        f'<div class="words" aria-hidden="true">{words}</div></div>'
        f'<div class="steps" aria-hidden="true">{steps}</div></figure>'
    )


def svg(drawing: str, title: str, summary: str, size: tuple[float, float] | None = None) -> str:
    """Return an SVG element with a title and a text alternative.

    :param size: width and height in pixels of a picture that keeps its size; ``None`` for one that is stretched.
    """
    width, height = size or (WIDTH, HEIGHT)
    fixed = f'width="{width:.0f}" height="{height:.0f}"' if size else 'preserveAspectRatio="none"'
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" {fixed} role="img" aria-label="{escape(summary, quote=True)}">'
        f"<title>{escape(title)}</title><desc>{escape(summary)}</desc>{drawing}</svg>"
    )


def step_ticks(steps: Sequence[int], most: int = 12) -> list[Tick]:
    """Return ticks for steps that are spread over the whole width: the first, the last and round ones between."""
    last = len(steps) - 1
    if last < 1:
        return [Tick(place(0, 1), str(step)) for step in steps]
    every = max(1, -(-last // most))
    chosen = [index for index in range(0, last + 1, every) if index == 0 or last - index >= every or index == last]
    chosen += [last] if last not in chosen else []
    return [Tick(place(index, last + 1), str(steps[index])) for index in chosen]


def place(index: int, count: int) -> float:
    """Return the horizontal place of a step, from 0 to 1, with a margin on both sides."""
    return 0.5 if count < 2 else 0.03 + 0.94 * index / (count - 1)


def _y(height: float) -> float:
    return HEIGHT * (1 - height)


def _drawn(line: Line) -> str:
    parts: list[list[str]] = [[]]
    for point in line.points:
        if point is None:
            parts.append([])
        else:
            parts[-1].append(f"{point[0] * WIDTH:.1f} {_y(point[1]):.1f}")
    drawn = "".join(f"M{'L'.join(part)}" for part in parts if len(part) > 1)
    spots = "".join(f"M{spot}h0" for part in parts for spot in part)
    return (
        f'<g class="{line.hue}">'
        + (f'<path class="line {line.kind}" d="{drawn}"/>' if drawn else "")
        + (f'<path class="dots {line.kind}" d="{spots}"/>' if spots else "")
        + "</g>"
    )
