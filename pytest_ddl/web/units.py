"""Format numbers for people: scaled units, percentages, changes with their sign, powers of ten; and choose ticks."""

from __future__ import annotations

import math
from itertools import pairwise

MINUS, DASH, TIMES = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
THIN = "\N{NARROW NO-BREAK SPACE}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def scale(unit: str, largest: float, *, share: bool = False) -> tuple[float, str]:
    """Return the divisor and the unit to show: ``(0.001, "ms")`` for seconds up to .5."""
    if share:
        return 0.01, "%"
    steps = {"seconds": _SECONDS, "s": _SECONDS, "bytes": _BYTES, "B": _BYTES}.get(unit)
    if steps is None:
        return 1.0, unit
    size = abs(largest)
    return next((step for step in steps if size >= step[0]), steps[-1])


def number(value: float, digits: int = 3) -> str:
    """Format a value with this many significant digits, all digits before the point, and groups of thousands."""
    if not math.isfinite(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{abs(value):,.{min(places, 9)}f}".replace(",", THIN)
    if value == int(value) and abs(value) < 1e15:
        text = f"{abs(value):,.0f}".replace(",", THIN)
    return (MINUS if value < 0 else "") + text


def quantity(value: float, unit: str, *, share: bool = False, digits: int = 3) -> str:
    """Format a value with its unit: ``12.4 ms`` for .0124 seconds."""
    by, scaled = scale(unit, value, share=share)
    return f"{number(value / by, digits)} {scaled}".strip()


def size(number: float) -> str:
    """Format a number of bytes in plain text: ``12 B``, ``1.5 MiB``."""
    by, unit = scale("bytes", number)
    return f"{number:.0f} B" if unit == "B" else f"{number / by:.3g} {unit}"


def percent(share: float, digits: int = 1) -> str:
    """Format a relative change with its sign: ``+5.2 %``."""
    if not math.isfinite(share):
        return "from 0"
    return f"{'+' if share >= 0 else MINUS}{abs(share) * 100:.{digits}f}{THIN}%"


def ticks(low: float, high: float, about: int = 3) -> list[float]:
    """Return round numbers within a range, about as many as ``about``."""
    if not high > low:
        return [low]
    span = high - low
    decade = 10.0 ** math.floor(math.log10(span / about))
    step = next(decade * factor for factor in (10, 5, 2.5, 2, 1) if span / (decade * factor) >= about - 0.5)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def labels(values: list[float]) -> list[str]:
    """Format ticks, all with the same number of decimals."""
    step = min((abs(after - before) for before, after in pairwise(values)), default=abs(values[0]) if values else 1.0)
    exponent = math.floor(math.log10(step)) if step else 0
    # A step of 0.25 needs one decimal more than its first digit.
    extra = 1 if abs(step / 10.0**exponent - 2.5) < 1e-6 else 0
    places = max(0, extra - exponent)
    return [f"{value:,.{places}f}".replace(",", THIN).replace("-", MINUS) for value in values]


def power(exponent: int) -> str:
    """Return a power of ten: ``1``, ``10``, ``10⁻⁹``."""
    return {0: "1", 1: "10"}.get(exponent, f"10{str(exponent).translate(_SUPERSCRIPTS)}")


def shown(value: float, digits: int = 3) -> str:
    """Return a number in its shortest form: ``0.103``, ``9.17 × 10⁻¹⁵``."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text.replace("-", MINUS)
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa.replace('-', MINUS)} {TIMES} {power(int(exponent))}"


def decades(low: int, high: int, most: int = 6) -> list[int]:
    """Return exponents from ``low`` to ``high`` for ticks, with 0 if it lies between them."""
    step = max(1, math.ceil((high - low) / most))
    return [exponent for exponent in range(low, high + 1) if exponent % step == 0]
