"""Operations of ``keras.ops`` for sums, transforms and matrices that NumPy has under other names, with definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from suites.tables.defined_operations import Call, Defined, call, each

Array = np.ndarray[Any, Any]
_DRAW = np.random.default_rng(7)
BLOCK = _DRAW.normal(size=(2, 3, 4)).astype("float32")
ROWS = _DRAW.normal(size=(6, 2)).astype("float32")
SEGMENTS = tuple(np.array(one, "int32") for one in ([0, 0, 1, 1, 2, 2], [0, 0, 2, 2, 2, 3], [0, 1, 2, 3, 4, 5]))
UNSORTED = tuple(np.array(one, "int32") for one in ([2, 0, 1, 0, 2, 1], [3, 0, 0, 1, 3, 3]))
SQUARES = _DRAW.normal(size=(2, 3, 3)).astype("float32") + 2 * np.eye(3, dtype="float32")
POSITIVE = (SQUARES @ np.swapaxes(SQUARES, -1, -2)).astype("float32")
LOWER = np.linalg.cholesky(POSITIVE).astype("float32")
TALL, WIDE = (_DRAW.normal(size=shape).astype("float32") for shape in ((2, 5, 3), (2, 3, 5)))
SIDES = _DRAW.normal(size=(2, 3, 2)).astype("float32")
FLAT = (_DRAW.normal(size=(4, 2)) @ _DRAW.normal(size=(2, 3))).astype("float32")
"""A matrix of rank 2."""
SOUND = _DRAW.normal(size=(2, 24)).astype("float32")
WINDOW = _DRAW.uniform(0.5, 1, 6).astype("float32")


def _segments(reduced: Callable[..., Any], empty: float) -> Callable[..., Array]:
    def model(data: Array, ids: Array, num_segments: int | None = None, **_options: Any) -> Array:
        count = int(ids.max()) + 1 if num_segments is None else num_segments
        rows = [data[ids == at] for at in range(count)]
        return np.stack([reduced(one, axis=0) if len(one) else np.full(data.shape[1:], empty) for one in rows])

    return model


def _of_segments(name: str, reduced: Callable[..., Any], empty: float | None) -> list[Defined]:
    """Return calls, some with segments that have nothing, if there is a number for them."""
    operation, model = f"segment_{name}", _segments(reduced, empty or 0.0)
    full = [ids for ids in SEGMENTS if len({*ids}) == ids.max() + 1]
    calls = [*(call(ROWS, ids, sorted=True) for ids in full), *(call(ROWS, ids) for ids in (*full, UNSORTED[0]))]
    calls += [call(ROWS, UNSORTED[0], num_segments=3), call(ROWS[:, 0], UNSORTED[0])]
    if empty is None:
        return [Defined(operation, model, calls)]
    calls += [call(ROWS, ids, num_segments=5) for ids in UNSORTED] + [call(ROWS, SEGMENTS[1], sorted=True)]
    gaps = [call(ROWS, SEGMENTS[1]), call(ROWS, UNSORTED[1])]
    return [Defined(operation, model, calls), Defined(operation, model, gaps, case="with gaps")]


def _top_k(x: Array, k: int, **_options: Any) -> Any:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order


def _in_order(found: Any, _x: Any, *_given: Any, **options: Any) -> Any:
    """Return values and places in the order of the values, if the operation need not do it."""
    order = np.argsort(-found[0], axis=-1)
    return found if options.get("sorted", True) else [np.take_along_axis(one, order, -1) for one in found]


def _in_top_k(targets: Array, predictions: Array, k: int) -> Array:
    there = targets < predictions.shape[-1]
    own = np.take_along_axis(predictions, np.where(there, targets, 0)[:, None], -1)
    return there & ((predictions > own).sum(axis=-1) < k)


def _logsumexp(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x.astype(float)).sum(axis=axis, keepdims=keepdims))


def _sequences(x: Array, sequence_length: int, sequence_stride: int) -> Array:
    count = 1 + (x.shape[-1] - sequence_length) // sequence_stride
    starts = [at * sequence_stride for at in range(count)]
    return np.stack([x[..., start : start + sequence_length] for start in starts], axis=-2)


def _parts(values: Array) -> Any:
    return values.real, values.imag


def _complex(transform: Callable[..., Array]) -> Callable[..., Any]:
    return lambda x, **given: _parts(transform(x[0] + 1j * x[1], **given))


def _window(window: Any, length: int, size: int) -> Array:
    """Return the window, with zeros on both sides up to the size of the transform."""
    at = np.arange(length) / length
    if window is None:
        # Without a window, all numbers of the transform count.
        return np.ones(size)
    if isinstance(window, str):
        share = {"hann": 0.5, "hamming": 0.54}[window]
        window = share - (1 - share) * np.cos(2 * np.pi * at)
    left = (size - length) // 2
    return np.pad(window, (left, size - length - left))


def _stft(
    x: Array, sequence_length: int, sequence_stride: int, fft_length: int, window: Any = "hann", center: bool = True
) -> Any:
    if center:
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(fft_length // 2,) * 2], mode="reflect")
    frames = _sequences(x, fft_length, sequence_stride)
    return _parts(np.fft.rfft(frames * _window(window, sequence_length, fft_length)))


STFT = (
    {"sequence_length": 6, "sequence_stride": 2, "fft_length": 8},
    {"sequence_length": 6, "sequence_stride": 3, "fft_length": 6},
    {"sequence_length": 4, "sequence_stride": 4, "fft_length": 4},
)


def _transforms() -> list[Call]:
    """Return transforms of a sound. Without a window it is that of the whole transform, so no zeros are in it."""
    found = []
    for given in STFT:
        windows = ["hann", "hamming", *([WINDOW[: given["sequence_length"]]]), None]
        found += [call(SOUND, **given, window=one, center=center) for one in windows for center in (True, False)]
    return found


def _inverses() -> list[Call]:
    """Return the transforms that have the whole sound, which the inverse gives back."""
    found = []
    for (x,), given in _transforms():
        if given["center"] and not (given["sequence_stride"] == 4 and given["window"] is not None):
            parts = tuple(one.astype("float32") for one in _stft(x, **given))
            found += [call(parts, **given), call(parts, **given, length=20)]
    return found


def _is(options: Any, case: str) -> bool:
    """Return whether a call is of a case: without a window if several frames overlap, or with one that is shorter."""
    without = options["window"] is None and options["sequence_stride"] < options["sequence_length"]
    short = options["fft_length"] > options["sequence_length"]
    return case == ("without a window" if without else "of a short window" if short else "")


def _sound(_parts: Any, length: int | None = None, **given: Any) -> Array:
    """Return the sound whose transform is given, as far as the steps reach."""
    whole = SOUND[:, : (SOUND.shape[-1] // given["sequence_stride"]) * given["sequence_stride"]]
    return whole if length is None else whole[:, :length]


def _function(one: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(one, otypes=[float])


def _inverse_of_erf(x: float) -> float:
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    low, high = -6.0, 6.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle) < x else (low, middle)
    return low


def _transposed(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _is_turned(options: Any) -> bool:
    """Return whether the norm is one of singular values, and its axes stay as the last two or from back to front."""
    axis, back = options["axis"], options["axis"] not in (None, (0, 1), (0, 2), (1, 2), (-1, -2))
    return options["ord"] in ("nuc", 2, -2) and options["keepdims"] and isinstance(axis, tuple) and back


def _norms() -> list[Call]:
    """Return the norms of vectors and matrices that NumPy has."""
    orders = (None, "fro", "nuc", np.inf, -np.inf, 0, 1, -1, 2, -2, 3, 0.5)
    found = []
    for x in (BLOCK[0, 0], BLOCK[0], BLOCK):
        axes = [None, -1, 0, x.ndim - 1] + [(0, 1), (1, 0), (-2, -1), (-1, -2)] * (x.ndim > 1)
        axes += [(0, 2), (2, 0), (1, 2), (-1, 0), (2, 1)] * (x.ndim > 2)
        for given in each(x, ord=orders, axis=axes, keepdims=(False, True)):
            try:
                np.linalg.norm(*given[0], **given[1])
            except ValueError:
                continue
            if given[1]["axis"] is not None or x.ndim < 3:  # documented for vectors and matrices
                found.append(given)
    return found


def _rank(x: Array, mode: str = "reduced") -> int:
    return min(x.shape[-2:]) if mode == "reduced" else x.shape[-2]


def _qr(x: Array, mode: str = "reduced") -> Any:
    """Return the product of both factors, that of the first with itself, and what is below the diagonal."""
    many = _rank(x, mode)
    return x, np.broadcast_to(np.eye(many), (*x.shape[:-2], many, many)), np.zeros((*x.shape[:-2], many, x.shape[-1]))


def _seen_qr(found: Any, _x: Array, **_options: Any) -> Any:
    q, r = found
    return q @ r, _transposed(q) @ q, np.tril(r, -1)


def _seen_svd(found: Any, x: Array, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    if not compute_uv:
        return found
    (u, s, v), many = found, min(x.shape[-2:])
    return s, (u[..., :many] * s[..., None, :]) @ v[..., :many, :], _transposed(u) @ u, v @ _transposed(v)


def _svd(x: Array, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    s = np.linalg.svd(x, compute_uv=False)
    if not compute_uv:
        return s
    sizes = x.shape[-2:] if full_matrices else [min(x.shape[-2:])] * 2
    return s, x, *(np.broadcast_to(np.eye(size), (*x.shape[:-2], size, size)) for size in sizes)


def _seen_lu(found: Any, x: Array) -> Array:
    """Return the product of both triangles, its rows in their first order: TensorFlow gives the place of each row."""
    lu, places = found
    many = min(x.shape[-2:])
    lower = np.tril(lu[..., :many], -1) + np.eye(x.shape[-2], many)
    product = lower @ np.triu(lu[..., :many, :])
    return np.take_along_axis(product, np.argsort(places, axis=-1)[..., None], -2)


def _triangular(a: Array, b: Array, lower: bool = False) -> Array:
    a = np.tril(a) if lower else np.triu(a)
    return np.linalg.solve(a, b) if a.ndim == b.ndim else np.linalg.solve(a, b[..., None])[..., 0]


def _solve(a: Array, b: Array) -> Array:
    return np.linalg.solve(a, b) if a.ndim == b.ndim else np.linalg.solve(a, b[..., None])[..., 0]


def _least(a: Array, b: Array, rcond: float | None = None) -> Any:
    return np.linalg.lstsq(a, b, rcond=rcond)[0]


FFT = tuple(_DRAW.normal(size=(2, 2, 6, 5)).astype("float32"))
FFT_64 = tuple(one.astype("float64") for one in FFT)
LARGE = np.array([[900.0, 901.0, 899.0], [-900.0, -901.0, -np.inf]], "float32")

MATH_OPERATIONS = (
    *_of_segments("sum", np.sum, 0.0),
    *_of_segments("prod", np.prod, 1.0),
    *_of_segments("max", np.max, None),
    *_of_segments("min", np.min, None),
    Defined("top_k", _top_k, [*each(BLOCK, k=(1, 2, 4), sorted=(True, False)), call(BLOCK[0, 0], 3)], view=_in_order),
    Defined("in_top_k", _in_top_k, each(np.array([2, 0, 4], "int32"), BLOCK[0], k=(1, 2, 3)), batched=2),
    Defined(
        "logsumexp",
        _logsumexp,
        [*each(BLOCK, axis=(None, 0, -1, (0, 1), (1, 2), (-1, 0)), keepdims=(False, True)), call(BLOCK[0, 0])],
    ),
    Defined(
        "cdist",
        lambda x, y: np.sqrt(((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)),
        [call(BLOCK, BLOCK[:, :2] + 1), call(BLOCK[0], BLOCK[1, :2])],
    ),
    Defined(
        "extract_sequences", _sequences, each(SOUND, sequence_length=(1, 5, 24), sequence_stride=(1, 3)), batched=1
    ),
    Defined("fft", _complex(np.fft.fft), [call(FFT), call(tuple(one[0] for one in FFT)), call(FFT_64)]),
    Defined("fft2", _complex(np.fft.fft2), [call(FFT), call(tuple(one[0] for one in FFT)), call(FFT_64)]),
    Defined("ifft2", _complex(np.fft.ifft2), [call(FFT), call(tuple(one[0] for one in FFT)), call(FFT_64)]),
    Defined(
        "rfft",
        lambda x, fft_length=None: _parts(np.fft.rfft(x, fft_length)),
        each(SOUND, fft_length=(None, 24, 25, 30, 10, 9)),
        batched=1,
    ),
    Defined(
        "irfft",
        lambda x, fft_length=None: np.fft.irfft(x[0] + 1j * x[1], fft_length),
        each(tuple(np.array(one, "float32") for one in _parts(np.fft.rfft(SOUND))), fft_length=(None, 24, 25, 30, 10)),
    ),
    Defined("stft", _stft, _transforms(), batched=1, atol=1e-4),
    *(
        Defined("istft", _sound, [one for one in _inverses() if _is(one[1], case)], atol=1e-4, case=case)
        for case in ("", "without a window", "of a short window")
    ),
    Defined("rsqrt", lambda x: 1 / np.sqrt(x), [call(np.abs(BLOCK))], batched=1),
    *(
        Defined(name, _function(one), [call(BLOCK), call(np.array([-np.inf, -5, -0.1, 0, 0.1, 5, np.inf], "float32"))])
        for name, one in (("erf", math.erf), ("erfc", math.erfc))
    ),
    Defined("erfinv", _function(_inverse_of_erf), [call(np.array([-1, -0.9, -0.1, 0, 0.5, 0.99, 1], "float32"))]),
    Defined("logdet", lambda x: np.linalg.slogdet(x)[1], [call(POSITIVE), call(POSITIVE[0])]),
    Defined("view_as_complex", lambda x: x[..., 0] + 1j * x[..., 1], [call(ROWS)], batched=1),
    Defined(
        "view_as_real", lambda x: np.stack(_parts(x), -1), [call((ROWS[:, 0] + 1j * ROWS[:, 1]).astype("complex64"))]
    ),
    Defined("norm", np.linalg.norm, [one for one in _norms() if not _is_turned(one[1])], atol=1e-4),
    Defined("norm", np.linalg.norm, [one for one in _norms() if _is_turned(one[1])], atol=1e-4, case="of turned axes"),
    Defined(
        "cholesky", lambda x, upper=False: _transposed(LOWER) if upper else LOWER, each(POSITIVE, upper=(False, True))
    ),
    Defined(
        "cholesky_inverse",
        lambda _factor, upper=False: np.linalg.inv(POSITIVE.astype(float)),
        [call(LOWER), call(LOWER, upper=False), call(np.ascontiguousarray(_transposed(LOWER)), upper=True)],
        rtol=1e-3,
        atol=1e-3,
    ),
    Defined("det", np.linalg.det, [call(SQUARES), call(SQUARES[0])], rtol=1e-4),
    Defined("inv", np.linalg.inv, [call(SQUARES), call(SQUARES[0])], rtol=1e-3, atol=1e-3),
    Defined("pinv", np.linalg.pinv, [call(TALL), call(WIDE[0]), *each(FLAT, rcond=(0.01,))], rtol=1e-3, atol=1e-3),
    Defined("matrix_rank", np.linalg.matrix_rank, [call(TALL), call(FLAT), *each(FLAT, tol=(1e-3, 100.0))]),
    Defined(
        "eigh",
        lambda x: (np.linalg.eigvalsh(x), x),
        [call(POSITIVE), call(POSITIVE[0])],
        view=lambda found, _x: (found[0], (found[1] * found[0][..., None, :]) @ _transposed(found[1])),
        atol=1e-4,
    ),
    Defined(
        "eig",
        lambda x: np.zeros(x.shape),
        [call(SQUARES), call(SQUARES[0])],
        view=lambda found, x: np.abs(x @ found[1] - found[1] * found[0][..., None, :]),
        atol=1e-4,
    ),
    Defined(
        "qr", _qr, each(TALL, mode=("reduced", "complete")) + each(WIDE[0], mode=("reduced", "complete")), view=_seen_qr
    ),
    Defined(
        "svd",
        _svd,
        [one for x in (TALL, WIDE, TALL[0]) for one in each(x, full_matrices=(True, False), compute_uv=(True, False))],
        view=_seen_svd,
        atol=1e-4,
    ),
    Defined("lu_factor", lambda x: x, [call(SQUARES[0])], view=_seen_lu),
    Defined("lu_factor", lambda x: x, [call(SQUARES)], view=_seen_lu, case="of a batch"),
    Defined(
        "solve",
        _solve,
        [
            call(SQUARES, SIDES),
            call(SQUARES[0], SIDES[0]),
            call(SQUARES[0], SIDES[0, :, 0]),
            call(SQUARES, SIDES[..., 0]),
        ],
        rtol=1e-3,
        atol=1e-3,
    ),
    Defined(
        "solve_triangular",
        _triangular,
        [
            call(SQUARES, SIDES),
            call(LOWER, SIDES, lower=True),
            call(LOWER, SIDES[..., 0], lower=True),
            call(LOWER[0], SIDES[0, :, 0], lower=True),
        ],
        rtol=1e-3,
        atol=1e-3,
    ),
    Defined(
        "lstsq",
        _least,
        [
            call(TALL[0], SOUND[0, :5]),
            call(TALL[0], TALL[1]),
            call(WIDE[0], SIDES[0]),
            *each(FLAT, ROWS[:4], rcond=(0.01,)),
        ],
        rtol=1e-3,
        atol=1e-3,
    ),
)
