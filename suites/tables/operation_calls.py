"""Calls of operations that ``keras.ops`` and NumPy share, with the arguments that they take beside one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

_DRAW = np.random.default_rng(1)
PLANE, OTHER, BLOCK = (_DRAW.normal(size=shape).astype("float32") for shape in ((3, 4), (4, 3), (2, 3, 4)))
"""Tensors whose axes all have different lengths."""
COUNTS = np.array([3, 1, 2, 2, 0, 1], "int32")
EDGES = np.array([0.0, 1.0, 2.0, 3.0], "float32")
POINTS = np.array([-1.0, 0.0, 0.5, 1.0, 3.0, 4.0], "float32")
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


def call(*given: Any, **options: Any) -> Call:
    return given, options


def _each(*first: Any, **options: Any) -> list[Call]:
    """Return a call for each choice of the options."""
    return [(first, dict(zip(options, chosen, strict=True))) for chosen in product(*options.values())]


AXES = (None, 0, 1, -1)
SEVERAL = ((0, 1), (-1, 0), (2,))
"""Several axes at once, from the front and from the back."""
OF_ONE_AXIS = ("argmax", "argmin")
OF_AXES = (
    *("all", "any", "amax", "amin", "max", "min", "sum", "prod", "mean", "std", "var", "median"),
    *("nanmax", "nanmin", "nansum", "nanprod", "nanmean", "nanstd", "nanvar"),
)
"""Operations that reduce axes, and may keep them with the length 1."""
WINDOWS = ("bartlett", "blackman", "hamming", "hanning")
CALLS: Mapping[str, list[Call]] = {
    "take": [one for idx in ([0, 2], [[0, 1], [2, -1]], 1, -1) for one in _each(PLANE, np.array(idx), axis=AXES)],
    "take_along_axis": [call(PLANE, np.argsort(PLANE, axis=axis), axis=axis) for axis in (0, 1, -1)],
    "roll": _each(PLANE, shift=(1, -2, 5), axis=AXES),
    "repeat": [*_each(PLANE, repeats=(2,), axis=AXES), call(PLANE, np.array([1, 0, 2]), axis=0)],
    "tile": [call(PLANE, repeats) for repeats in (2, (2,), (2, 3), (2, 1, 3))],
    "quantile": _each(
        PLANE,
        q=(0.0, 0.3, 0.5, 1.0, np.array([0.25, 0.75], "float32")),
        axis=AXES,
        method=("linear", "lower", "higher", "midpoint", "nearest"),
        keepdims=(False, True),
    ),
    "diff": _each(PLANE, n=(1, 2, 3), axis=(0, 1, -1)),
    "split": [call(BLOCK, 2, axis=0), call(BLOCK, [1, 2], axis=2), call(BLOCK, [2], axis=-1)],
    "array_split": [call(BLOCK, 3, axis=2), call(BLOCK, 2, axis=1)],
    "pad": [
        *_each(PLANE, pad_width=(1, (1,), ((1, 0), (0, 2)), ((2, 1),)), mode=("constant", "reflect", "symmetric")),
        call(PLANE, ((1, 2), (0, 1)), constant_values=7),
    ],
    **{name: _each(PLANE, k=(-2, -1, 0, 1, 3)) for name in ("tril", "triu", "rot90")},
    "diag": [*_each(PLANE, k=(-2, -1, 0, 1, 3)), *_each(PLANE[0], k=(-1, 0, 2))],
    "diagonal": _each(PLANE, offset=(-2, -1, 0, 1, 3)),
    "trace": _each(PLANE, offset=(-2, 0, 1)),
    "eye": _each(3, 4, k=(-1, 0, 2)),
    "tri": _each(3, 4, k=(-1, 0, 2)),
    "tensordot": [call(PLANE, OTHER, axes=axes) for axes in (0, 1, ([1], [0]), ([0, 1], [1, 0]))],
    "moveaxis": [call(BLOCK, *axes) for axes in ((0, 1), (-1, 0), ((0, 1), (2, 0)))],
    "swapaxes": [call(BLOCK, *axes) for axes in ((0, 1), (-1, 0))],
    "transpose": [call(BLOCK), call(BLOCK, (2, 0, 1))],
    "searchsorted": _each(EDGES, POINTS, side=("left", "right")),
    "digitize": [call(POINTS, EDGES)],
    "bincount": [call(COUNTS), call(COUNTS, minlength=6), call(COUNTS, weights=POINTS)],
    "linspace": [*_each(1.0, 5.0, 5, endpoint=(True, False)), call(EDGES[:2], EDGES[2:], 4, axis=1)],
    "logspace": _each(0.0, 2.0, 4, endpoint=(True, False)),
    "geomspace": _each(1.0, 8.0, 4, endpoint=(True, False)),
    "arange": [call(5), call(1, 9, 3), call(9, 1, -3), call(0, 1, 0.25)],
    "clip": [call(PLANE, -0.5, 0.5)],
    "where": [call(PLANE > 0, PLANE, -PLANE), call(PLANE > 0)],
    "round": [call(PLANE * 10, 1), call(PLANE * 1000, -1)],
    "average": [call(PLANE, axis=0, weights=EDGES[1:]), call(PLANE), call(PLANE, axis=1, weights=abs(PLANE) + 1)],
    "dot": [call(PLANE, OTHER), call(BLOCK, OTHER)],
    "outer": [call(PLANE[0], OTHER[:, 0])],
    "cross": [
        call(PLANE[:, :3], PLANE[:, 1:]),
        call(BLOCK, BLOCK[::-1], axis=1),
        *_each(BLOCK, np.moveaxis(BLOCK[::-1], 1, 0), axisa=(1, -2), axisb=(0,), axisc=(0, 1, -1)),
    ],
    "einsum": [call("ij,jk->ki", PLANE, OTHER), call("ijk->jk", BLOCK)],
    "kron": [call(PLANE, OTHER)],
    "nan_to_num": [call(np.array([np.nan, np.inf, -np.inf, 1]), nan=2.0, posinf=3.0, neginf=-4.0)],
    "isin": _each(COUNTS, np.array([1, 2]), invert=(False, True)),
    "unravel_index": [call(np.array([3, 7]), (3, 4))],
    "meshgrid": _each(PLANE[0], PLANE[1, :3], indexing=("xy", "ij")),
    "histogram": [call(PLANE.ravel(), bins=5), call(PLANE.ravel(), bins=4, range=(-1.0, 1.0))],
    "trapezoid": [call(PLANE, dx=0.5), call(PLANE, axis=0)],
    "vander": [call(PLANE[0]), call(PLANE[0], 3, increasing=True)],
    "stack": _each([PLANE, PLANE + 1], axis=(0, 1, -1)),
    "concatenate": _each([PLANE, PLANE + 1], axis=(0, 1, -1)),
    "append": _each(PLANE, PLANE + 1, axis=(None, 0, 1)),
    "floor_divide": [call(np.array([-7, 7, -7.5]), np.array([2, -2, 2]))],
    "mod": [call(np.array([-7, 7, -7.5]), np.array([2, -2, 2.0]))],
    "fmod": [call(np.array([-7, 7, -7.5]), np.array([2, -2, 2.0]))],
    **{name: _each(BLOCK, axis=(*AXES, *SEVERAL), keepdims=(False, True)) for name in OF_AXES},
    **{name: _each(BLOCK, axis=AXES, keepdims=(False, True)) for name in OF_ONE_AXIS},
    **{name: _each(BLOCK, axis=AXES) for name in ("sort", "cumsum", "cumprod")},
    **{name: [call(number) for number in (1, 2, 5)] for name in WINDOWS},
    "kaiser": [call(number, beta) for number in (1, 5) for beta in (0.0, 3.0)],
    **{name: [call(COUNTS, 1), call(COUNTS.astype("int8"), 2)] for name in ("left_shift", "right_shift")},
    "correlate": [call(POINTS, EDGES[:size], mode=mode) for size in (1, 2, 3) for mode in ("valid", "same", "full")],
    "count_nonzero": _each(BLOCK, axis=(*AXES, *SEVERAL)),
    "expand_dims": _each(PLANE, axis=(0, -1, 2)),
    "flip": _each(BLOCK, axis=(*AXES, *SEVERAL, [0, 2])),
    "nonzero": [call(PLANE > 0)],
    "squeeze": _each(PLANE[:, None, :, None], axis=(None, 1, -1, (1, 3))),
}
"""Operation -> its calls."""
