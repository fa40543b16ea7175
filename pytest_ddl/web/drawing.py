"""Draw with matplotlib in one style, with colors that color-blind readers can distinguish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SINGLE, MANY, ALL, STEADY = "#0072B2", "#D55E00", "#009E73", "#56B4E9"
"""Colors of Okabe and Ito."""
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


def save(draw: Callable[[Any], None], path: Path) -> None:
    """Draw into a new figure and write it, as SVG or PNG by the ending of the path."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(PLOT_STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        draw(figure)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
