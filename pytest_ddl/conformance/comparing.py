"""Compare what replicas computed with what they should have, in words that name both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SINGLE = 1024 * 2.0**-23
"""Relative bound for any object: a thousand roundings of float32, because an object that is made in float64 may still
compute in float32 inside. The replicas' data differ by more than a hundredth."""
_SHOWN = 4
"""Maximum number of elements that a message shows."""


class MismatchError(AssertionError):
    """Values that differ. The message says what was compared."""


class NotJudgedError(Exception):
    """A check that cannot judge an object under a strategy. The message says why."""


def compare(what: str, found: Any, expected: Any, rtol: float, *, where: str = "with all examples") -> None:
    """Compare two values or nests of values.

    :raises MismatchError: if they differ by more than rounding.
    """
    pairs = [*zip(flat(found), flat(expected), strict=False)]
    if len(flat(found)) != len(flat(expected)):
        raise MismatchError(f"{what} has {len(flat(found))} values, and {len(flat(expected))} on one device {where}")
    for one, other in pairs:
        if one.shape != other.shape:
            raise MismatchError(f"{what} has the shape {one.shape}, and {other.shape} on one device {where}")
        if one.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
            same = bool((one == other).all())
        else:
            # The absolute bound is for elements that are small by cancellation.
            largest = np.abs(other[np.isfinite(other)]).max(initial=0)
            same = bool(np.allclose(one, other, rtol, rtol * largest, equal_nan=True))
        if not same:
            raise MismatchError(
                f"{what} is {shown(one)}, and {shown(other)} on one device {where}{_factor(one, other)}"
            )


def flat(value: Any) -> list[Array]:
    """Return the arrays of a nest of tensors."""
    if isinstance(value, Mapping):
        return [array for key in sorted(value) for array in flat(value[key])]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [array for one in value for array in flat(one)]
    array = np.asarray(value)
    # NumPy does not know bfloat16.
    return [array.astype("float32") if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array]


def shown(array: Array) -> str:
    """Return the first elements of an array as text."""
    numbers = [f"{one:.6g}" if array.dtype.kind == "f" else str(one) for one in array.ravel()[:_SHOWN]]
    if array.ndim == 0:
        return numbers[0]
    return f"[{' '.join(numbers)}{' ...' if array.size > _SHOWN else ''}]"


def _factor(one: Array, other: Array) -> str:
    """Return a note on the factor between two arrays, if there is one."""
    if one.dtype.kind != "f" or other.dtype.kind != "f" or not np.isfinite([*one.ravel(), *other.ravel()]).all():
        return ""
    with np.errstate(all="ignore"):
        ratios = (one / other).ravel()
    first = ratios[0] if ratios.size else np.nan
    if not np.isfinite(first) or not np.allclose(ratios, first, 1e-3, 0) or abs(first - round(first, 3)) > 1e-3:
        return ""
    return f" ({first:.4g} times as much)"
