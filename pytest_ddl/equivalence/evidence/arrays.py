"""Compare arrays: find the largest difference and its place, and derive one array from others.

NaN equals NaN here, and an infinity equals itself. The checks decide whether a non-finite value is acceptable.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.records import Array

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Largest absolute difference between two arrays and the index of that element."""

    error: float
    index: tuple[int, ...] = ()
    actual: str = ""
    desired: str = ""


def is_numeric(value: Array) -> bool:
    """Return whether differences of the values have a meaning (they have none for strings and objects)."""
    return _is_a(value.dtype, np.number) or value.dtype == np.bool_


@functools.cache
def _is_a(dtype: np.dtype[Any], kind: type[np.generic]) -> bool:
    """Return whether a dtype is of a kind. A judgement asks this of every value, and there are few dtypes."""
    return bool(np.issubdtype(dtype, kind))


def same(left: Array, right: Array) -> bool:
    """Return whether two arrays agree bit for bit. NaN counts as equal to NaN."""
    if left.shape != right.shape:
        return False
    floating = _is_a(left.dtype, np.inexact) and _is_a(right.dtype, np.inexact)
    return bool(np.array_equal(left, right, equal_nan=floating))


def same_parts(left: Sequence[Array], right: Sequence[Array]) -> bool:
    """Return whether the components of two variables agree bit for bit."""
    return len(left) == len(right) and all(map(same, left, right))


def difference(actual: Array, desired: Array) -> Difference:
    """Return the largest absolute difference. It is infinite if kind or shape differ."""
    if actual.shape != desired.shape:
        return Difference(np.inf, (), f"shape {actual.shape}", f"shape {desired.shape}")
    if actual.size == 0:
        return Difference(0.0)
    if not (is_numeric(actual) and is_numeric(desired)):
        unequal = np.asarray(actual != desired)
        distance = np.where(unequal, np.inf, 0.0)
    else:
        left, right = actual.astype(np.float64, copy=False), desired.astype(np.float64, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(left - right)
        if not np.isfinite(distance).all():
            agree = (left == right) | (np.isnan(left) & np.isnan(right))
            distance = np.where(agree, 0.0, np.where(np.isnan(distance), np.inf, distance))
    place = np.unravel_index(int(np.argmax(distance)), distance.shape)
    return Difference(
        error=float(distance[place]),
        index=tuple(int(i) for i in place),
        actual=show(actual[place]),
        desired=show(desired[place]),
    )


def farthest(values: Iterable[Array | None], desired: Array | None) -> float:
    """Return the largest difference of several values; 0 if there is none."""
    errors = [difference(value, desired).error for value in values if value is not None and desired is not None]
    return max(errors, default=0.0)


def show(value: object) -> str:
    """Format a number for a person: at most nine digits, in the shortest form."""
    try:
        return f"{float(value):.9g}"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)


def magnitude(value: Array | None) -> float:
    """Return the largest finite absolute value, or 0 if there is none."""
    if value is None or value.size == 0 or not is_numeric(value):
        return 0.0
    absolute = np.abs(value.astype(np.float64, copy=False))
    largest = float(absolute.max())
    return largest if math.isfinite(largest) else float(np.max(absolute, initial=0.0, where=np.isfinite(absolute)))


def all_finite(value: Array) -> bool:
    """Return whether an array holds no NaN and no infinity."""
    return not _is_a(value.dtype, np.inexact) or bool(np.isfinite(value.astype(np.float64, copy=False)).all())


def norm(value: Float) -> float:
    """Return the Euclidean norm over all finite elements, without overflow for large entries."""
    largest = magnitude(value)
    if largest == 0.0:
        return 0.0
    finite = np.where(np.isfinite(value), value, 0.0)
    return float(largest * np.sqrt(np.sum(np.square(finite / largest))))


def ratio_of_norms(actual: Float, desired: Float) -> float | None:
    """Return ``|actual| / |desired|``, or ``None`` if ``desired`` is zero."""
    below = norm(desired)
    return norm(actual) / below if below > 0 else None


def mean(values: Sequence[Float], weights: Sequence[float] | None = None) -> Float:
    """Return the (weighted) mean of arrays."""
    if weights is None:
        weights = [1.0 / len(values)] * len(values)
    total = np.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        total = total + weight * value
    return total


def coefficient(vector: Float, direction: Float) -> float | None:
    """Return the least-squares ``c`` of ``vector = c * direction``, or ``None`` for a zero direction."""
    square = float(np.sum(np.square(direction)))
    return float(np.sum(vector * direction)) / square if square > 0 else None


def flat(values: Sequence[Float]) -> Float:
    """Return the entries of several arrays as one vector."""
    return np.concatenate([np.ravel(value) for value in values])
