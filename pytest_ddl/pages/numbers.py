"""Write numbers of many magnitudes, and choose the ticks of a logarithmic axis."""

from __future__ import annotations

import math

from pytest_ddl.web.units import MINUS, TIMES

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
