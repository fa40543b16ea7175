"""Describe the difference of two answers, or of an answer and the symbolic result that a model has in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suites.backends.answers import Answer

PRECISION = {"float16": 1e-3, "bfloat16": 8e-3}
"""Type -> distance of numbers next to 1. Numbers of 8 bits become float16 in the NumPy backend."""
OTHERS = 1.2e-7
ROUNDINGS = 16
"""Several roundings, and sums of a few numbers."""


def leaves(tree: Any) -> list[Any]:
    """Return the parts of a structure."""
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else None
    return [tree] if parts is None else [one for part in parts for one in leaves(part)]


def coarsest(*trees: Any) -> float:
    """Return the precision of the arrays with the fewest bits."""
    found = [one.dtype.name for tree in trees for one in leaves(tree) if isinstance(one, np.ndarray)]
    small = {"float16" if name in ("int8", "uint8", "bool") else name for name in found}
    return max([PRECISION.get(name, OTHERS) for name in small], default=OTHERS)


def difference(found: Answer, wanted: Answer, given: Any, least: float = 1e-3) -> tuple[str, str]:
    """Return what differs in a word, and how, both empty if nothing does. What the second refuses is not compared.

    :param least: size of the numbers whose rounding errors may be in any result, because they cancel.
    """
    if wanted.error:
        return "", ""
    if found.error:
        return "refused", f"{found.error}: {found.text}"
    one, other = leaves(found.value), leaves(wanted.value)
    if len(one) != len(other):
        return "structure", f"{len(one)} parts instead of {len(other)}"
    precision = coarsest(given, found.value, wanted.value)
    for first, second in zip(one, other, strict=True):
        if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
            kind = _of_arrays(first, second, precision, least)
        else:
            kind = ("", "") if np.array_equal(first, second) else ("value", f"{first} instead of {second}")
        if kind[0]:
            return kind
    return "", ""


def _of_arrays(found: Any, wanted: Any, precision: float, least: float) -> tuple[str, str]:
    if found.shape != wanted.shape:
        return "shape", f"{found.shape} instead of {wanted.shape}"
    if found.dtype != wanted.dtype:
        return "dtype", f"{found.dtype} instead of {wanted.dtype}"
    kind = complex if found.dtype.kind == "c" else float
    one, other = found.astype(kind), wanted.astype(kind)
    finite = np.abs(other[np.isfinite(other)])
    bound = {"rtol": ROUNDINGS * precision, "atol": ROUNDINGS * precision * max(finite.max(initial=0.0), least)}
    if found.dtype.kind in "biu":
        bound = {"rtol": 0.0, "atol": 0.0}
    with np.errstate(all="ignore"):
        if np.allclose(one, other, equal_nan=True, **bound):
            return "", ""
        at = np.unravel_index(np.argmin(np.isclose(one, other, equal_nan=True, **bound)), one.shape)
    return "value", f"{one[at]} instead of {other[at]} at {[int(place) for place in at]}"


def fits(stated: Any, real: Any) -> bool:
    """Return whether each length of a symbolic shape is that of the result, or not known."""
    return len(stated) == len(real) and all(one in (None, other) for one, other in zip(stated, real, strict=True))


def told(shown: Any, real: Any) -> tuple[str, str]:
    """Return the kind of difference of a symbolic result and the real one, and its description, or two empty texts."""
    one, other = leaves(shown), leaves(real)
    if len(one) != len(other):
        return "told structure", f"told {len(one)} parts, are {len(other)}"
    for first, second in zip(one, other, strict=True):
        if not hasattr(first, "shape") or not isinstance(second, np.ndarray):
            continue
        if not fits(first.shape, second.shape):
            return "told shape", f"told {tuple(first.shape)}, is {second.shape}"
        if first.dtype != second.dtype.name:
            return "told dtype", f"told {first.dtype}, is {second.dtype.name}"
    return "", ""
